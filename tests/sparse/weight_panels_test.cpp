// The gradient of a weight that is too large for one panel of scratch: each kept element and the
// layer's bias get their sums, for any encoding of the index, and the scratch stays small.
#include <gtest/gtest.h>

#include "sparse/weight/weight.h"
#include "src/core/rng.h"

namespace espalier::sparse::weight_panels_test {
namespace {

constexpr int64_t kBatch = 3;

struct Case {
  int64_t rows, cols;
  Encoding encoding;
  DType dtype;
};

Mask mask_of(int64_t size, double density) {
  Mask mask(size);
  for (int64_t i = 0; i < size; ++i) {
    mask.set(i, uniform(philox(3, 1, static_cast<uint64_t>(i))[0]) < density);
  }
  return mask;
}

float dy_at(int64_t b, int64_t row) { return static_cast<float>((b * 31 + row * 7) % 5 - 2); }
float x_at(int64_t b, int64_t col) { return static_cast<float>((b * 17 + col * 3) % 7 - 3); }

template <class Value>
void fill(const Tensor& tensor, const Value& value) {
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < tensor.cols(); ++i) {
      const int64_t at = b * tensor.cols() + i;
      if (tensor.dtype == DType::fp32) {
        tensor.get<float>()[at] = value(b, i);
      } else {
        tensor.get<bf16>()[at] = to_bf16(value(b, i));
      }
    }
  }
}

void expect_exact(const Case& one, const Mask& mask, Storage storage) {
  const kernels::Kernels& kernels = kernels::by_name("auto");
  Arena arena;
  Stream stream(arena, 2);
  std::vector<ParameterSpec> specs{
      {.name = "w", .shape = Shape{one.rows, one.cols}, .prunable = true}};
  Store store(stream, kernels, specs,
              {.dtype = one.dtype,
               .gradient = DType::fp32,
               .encoding = [&](const std::string&) { return std::optional(one.encoding); },
               .storage = [&](const std::string&) { return storage; }});
  store.set_masks(std::vector<Mask>{mask});
  Parameter& weight = store.find("w");
  const Buffer dy = arena.allocate(Memory::activation, "dy", one.dtype, Shape{kBatch, one.rows});
  const Buffer x = arena.allocate(Memory::activation, "x", one.dtype, Shape{kBatch, one.cols});
  fill(dy.tensor(), dy_at);
  fill(x.tensor(), x_at);
  Weight products(store, kernels, weight);
  const Buffer bias = arena.allocate(Memory::gradient, "bias", DType::fp32, Shape{one.rows});
  for (const bool accumulate : {false, true}) {
    products.accumulate_gradient(stream, {.dy = dy.tensor(),
                                          .x = x.tensor(),
                                          .accumulate = accumulate,
                                          .bias_gradient = bias.tensor()});
  }
  const auto positions = weight.index.positions();
  const auto gradient = store.part(store.gradient(), weight).span<float>();
  int64_t wrong = 0;
  for (size_t k = 0; k < positions.size(); ++k) {
    float sum = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      sum += dy_at(b, positions[k] / one.cols) * x_at(b, positions[k] % one.cols);
    }
    wrong += gradient[k] == 2 * sum ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0);
  for (int64_t row = 0; row < one.rows; ++row) {
    float sum = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      sum += dy_at(b, row);
    }
    wrong += bias.tensor().get<float>()[row] == 2 * sum ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0) << "of the bias";
  // One panel (at least 512 rows where bitmaps cannot be cut elsewhere) and a decoded index.
  const auto least = static_cast<size_t>(std::min<int64_t>(one.rows, 512) * one.cols * 4);
  EXPECT_LE(arena.use(Memory::scratch).now, std::max(size_t{2} << 20U, least) +
                                                static_cast<size_t>(mask.size()) / 4 +
                                                (size_t{1} << 20U));
}

TEST(WeightPanels, EveryKeptElementGetsItsSum) {
  const std::vector<std::pair<int64_t, int64_t>> shapes{
      {3000, 384}, {1111, 513}, {2, 600001}, {700, 1000}, {1, 5}};
  for (const auto& [rows, cols] : shapes) {
    for (const double density : {0.0, 0.1, 0.7}) {
      const Mask mask = mask_of(rows * cols, density);
      for (const Encoding& encoding : {Encoding::int32, Encoding::bitmap, Encoding::golomb}) {
        for (const DType dtype : {DType::fp32, DType::bf16}) {
          SCOPED_TRACE(fmt::format("{} x {} {} {} density {}", rows, cols, encoding.name,
                                   name_of(dtype), density));
          const Case one{rows, cols, encoding, dtype};
          expect_exact(one, mask, Storage::dense);
          expect_exact(one, mask, Storage::expanded);
        }
      }
    }
  }
}

}  // namespace
}  // namespace espalier::sparse::weight_panels_test
