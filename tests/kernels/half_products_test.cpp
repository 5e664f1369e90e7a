// Dense products of 16-bit types on CPUs, and types that a call may not mix.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_memory.h"

namespace espalier::kernels::half_products_test {
namespace {

/// Some CPUs multiply by panels: several panels along each extent, each operand plain and
/// transposed.
class HalfProducts : public ::testing::TestWithParam<DType> {};

TEST_P(HalfProducts, are_those_of_the_same_numbers_in_fp32) {
  const DType half = GetParam();
  constexpr int64_t kM = 270, kN = 1040, kK = 530;
  Arena arena;
  Stream stream(arena, 2);
  const auto make = [&](DType dtype, const Shape& shape) {
    return arena.allocate(Memory::scratch, "operand", dtype, shape);
  };
  for (const Kernels* table : computing_tables()) {
    for (int flags = 0; flags < 16; ++flags) {
      const bool transpose_a = (flags & 1) != 0;
      const bool transpose_b = (flags & 2) != 0;
      const bool accumulate = (flags & 4) != 0;
      const DType out = (flags & 8) != 0 ? half : DType::fp32;
      if (table != computing_tables().front() && flags != 11) {
        continue;  // tables differ only in the conversion of numbers
      }
      const Buffer a[] = {make(DType::fp32, transpose_a ? Shape{kK, kM} : Shape{kM, kK}),
                          make(half, transpose_a ? Shape{kK, kM} : Shape{kM, kK})};
      const Buffer b[] = {make(DType::fp32, transpose_b ? Shape{kN, kK} : Shape{kK, kN}),
                          make(half, transpose_b ? Shape{kN, kK} : Shape{kK, kN})};
      const Buffer c[] = {make(DType::fp32, {kM, kN}), make(out, {kM, kN})};
      const Buffer bias = make(DType::fp32, {kN});
      uint64_t seed = 1;
      for (const Tensor& wide : {a[0].tensor(), b[0].tensor(), c[0].tensor(), bias.tensor()}) {
        const Values drawn = draw(++seed, wide.count(), -1, 1);
        for (int64_t i = 0; i < wide.count(); ++i) {
          wide.get<float>()[i] = static_cast<float>(rounded(half, drawn[i]));
        }
      }
      table->cast(stream, {.x = a[0].tensor(), .y = a[1].tensor()});
      table->cast(stream, {.x = b[0].tensor(), .y = b[1].tensor()});
      table->cast(stream, {.x = c[0].tensor(), .y = c[1].tensor()});
      for (int i = 0; i < 2; ++i) {
        table->gemm(stream, {.a = a[i].tensor(),
                             .b = b[i].tensor(),
                             .c = c[i].tensor(),
                             .bias = bias.tensor(),
                             .transpose_a = transpose_a,
                             .transpose_b = transpose_b,
                             .accumulate = accumulate});
      }
      double largest = 0;
      for (int64_t i = 0; i < kM * kN; ++i) {
        const double want = read(c[0].tensor(), i);
        const double rounding = rounding_of(out) * std::fabs(want);
        largest = std::max(largest, std::fabs(read(c[1].tensor(), i) - want) - rounding);
      }
      EXPECT_LT(largest, 1e-4) << table->name << " flags " << flags;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, HalfProducts, ::testing::Values(DType::fp16, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST(HalfProduct, is_not_of_both_types_of_sixteen_bits) {
  Arena arena;
  Stream stream(arena, 1);
  const Buffer x = arena.allocate(Memory::scratch, "x", DType::bf16, {24});
  const Buffer y = arena.allocate(Memory::scratch, "y", DType::fp16, {24});
  for (const Kernels* table : computing_tables()) {
    EXPECT_THROW(table->cast(stream, {.x = x.tensor(), .y = y.tensor()}), Bug);
    EXPECT_THROW(table->gather(stream, {.dense = x.tensor(),
                                        .packed = y.tensor(),
                                        .positions = {.size = 24, .count = 24}}),
                 Bug);
    for (const auto& [operands, result] : {std::pair(&x, &y), std::pair(&y, &x)}) {
      EXPECT_THROW(table->gemm(stream, {.a = operands->tensor().reshaped({4, 6}),
                                        .b = operands->tensor().reshaped({6, 4}),
                                        .c = result->tensor().reshaped({4, 6}).column_range(0, 4)}),
                   Bug);
    }
  }
}

}  // namespace
}  // namespace espalier::kernels::half_products_test
