// The lists of kept elements that unstructured products on a device read. They exist when needed,
// have the stated size, and always match the present mask, as does the data that a library stores
// with them.
#include <gtest/gtest.h>

#include <algorithm>

#include "sparse/weight/weight.h"
#include "src/core/mirror.h"
#include "src/core/rng.h"
#include "src/kernels/backend.h"
#include "src/kernels/cuda/table.h"
#include "src/train/memory/storage_choice.h"
#include "tests/device/late_table.h"
#include "tests/simt/sparse_host.h"

namespace espalier::sparse::sparse_lists_test {
namespace {

constexpr int64_t kRows = 24, kCols = 40, kTokens = 8;

Mask mask_of(uint64_t seed) {
  Mask mask(kRows * kCols);
  for (int64_t i = 0; i < mask.size(); ++i) {  // each row and seed keeps the same number
    mask.set(i, (i + static_cast<int64_t>(seed)) % 4 == 0);
  }
  return mask;
}

/// One weight on a backend, and its three products on fixed activations.
class OneWeight {
 public:
  OneWeight(const kernels::Kernels& table, DType dtype, Storage storage)
      : backend_(table, 1),
        store_(backend_.stream(), table,
               {{.name = "w", .shape = Shape{kRows, kCols}, .prunable = true}},
               {.dtype = dtype,
                .gradient = dtype,
                .storage = [=](const std::string&) { return storage; }}),
        weight_(store_, table, parameter()),
        x_(fill(dtype, kCols, 1)),
        dy_(fill(dtype, kRows, 2)),
        y_(fill(dtype, kRows, 3)),
        dx_(fill(dtype, kCols, 4)) {}

  void set_mask(const Mask& mask) {
    store_.set_masks(std::vector<Mask>{mask});
    std::vector<float> values(static_cast<size_t>(mask.kept()));
    for (size_t k = 0; k < values.size(); ++k) {
      values[k] = to_float(to_bf16(uniform(philox(9, 1, k)[0]) - 0.5F));
    }
    store_.set_values(parameter(), values);
  }
  /// y, dx and dW, concatenated.
  std::vector<float> products() {
    Stream& stream = backend_.stream();
    weight_.apply(stream, {.x = x_.tensor(), .y = y_.tensor()});
    weight_.apply_transposed(stream, {.dy = dy_.tensor(), .dx = dx_.tensor()});
    weight_.accumulate_gradient(stream, {.dy = dy_.tensor(), .x = x_.tensor()});
    std::vector<float> all;
    for (const Tensor& t :
         {y_.tensor(), dx_.tensor(), store_.part(store_.gradient(), parameter())}) {
      const Mirror mirror(stream, t);
      const Tensor host = mirror.read().host();
      for (int64_t i = 0; i < host.count(); ++i) {
        all.push_back(host.dtype == DType::fp32 ? host.get<float>()[i]
                                                : to_float(host.get<bf16>()[i]));
      }
    }
    return all;
  }
  Parameter& parameter() { return store_.find("w"); }
  Store& store() { return store_; }
  size_t index_bytes() { return backend_.arena().use(Memory::index).now; }

 private:
  Buffer fill(DType dtype, int64_t cols, uint64_t seed) {
    Buffer made = backend_.arena().allocate(Memory::activation, "x", dtype, Shape{kTokens, cols});
    const Mirror mirror(backend_.stream(), made.tensor());
    for (int64_t i = 0; i < mirror.host().count(); ++i) {
      const float value = static_cast<float>(philox(seed, 0, static_cast<uint64_t>(i))[0] % 5) - 2;
      if (dtype == DType::fp32) {
        mirror.host().get<float>()[i] = value;
      } else {
        mirror.host().get<bf16>()[i] = to_bf16(value);
      }
    }
    mirror.write();
    return made;
  }

  kernels::Backend backend_;
  Store store_;
  Weight weight_;
  Buffer x_, dy_, y_, dx_;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, DType dtype) {
  ASSERT_EQ(got.size(), want.size());
  const float relative = dtype == DType::bf16 ? 0x1p-7F : 1e-5F;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], relative * (std::abs(want[i]) + 1)) << i;
  }
}

TEST(SparseLists, AreOfThePresentMask) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    OneWeight simt(kernels::cuda_simt::table(), dtype, Storage::sparse);
    OneWeight cpu(kernels::by_name("cpu"), dtype, Storage::sparse);
    for (const uint64_t seed : {0, 1, 2, 1}) {
      simt.set_mask(mask_of(seed));
      cpu.set_mask(mask_of(seed));
      const int64_t before = simt::library_products();
      expect_near(simt.products(), cpu.products(), dtype);
      simt.products();
      EXPECT_EQ(simt::library_products() - before, dtype == DType::fp32 ? 6 : 4)
          << "SDDMM of bf16 is ours";
    }
  }
}

TEST(SparseLists, AreThereWhereElementsAreMultiplied) {
  const Mask mask = mask_of(0);
  const size_t lists = 4 * (32 + 240 + 48 + 240 + 240);  // 16 at a time
  OneWeight weight(testing::late_table(), DType::bf16, Storage::dense);
  weight.set_mask(mask);
  const size_t bitmap = weight.index_bytes();
  EXPECT_FALSE(weight.parameter().csr);
  for (const Storage storage :
       {Storage::sparse, Storage::expanded, Storage::tiles, Storage::sparse}) {
    weight.store().set_storage(weight.parameter(), storage);
    const size_t wanted = storage == Storage::expanded ? 0 : lists;
    EXPECT_EQ(weight.parameter().csr.bytes(), wanted);
    EXPECT_EQ(weight.index_bytes(), bitmap + wanted);
    EXPECT_EQ(weight.store().parts().index, bitmap + wanted);
    EXPECT_EQ(weight.parameter().tiles, nullptr);
  }
  OneWeight cpu(kernels::by_name("cpu"), DType::bf16, Storage::sparse);
  cpu.set_mask(mask);
  EXPECT_FALSE(cpu.parameter().csr) << "the CPU makes its own tiles";
}

/// Storage "auto" does not time a storage that is "sparse" there.
TEST(SparseLists, TilesAreNoCandidateOnADevice) {
  io::Config config;
  config.pruning.method = "random";
  const std::vector<bool> prunable{true};
  for (const kernels::Kernels* table : {&testing::late_table(), &kernels::by_name("cpu")}) {
    OneWeight weight(*table, DType::bf16, Storage::dense);
    const auto groups = train::time_storages({.config = config,
                                              .store = weight.store(),
                                              .prunable = prunable,
                                              .density = 0.25,
                                              .rows = kTokens},
                                             1, *table);
    ASSERT_EQ(groups.size(), 1U);
    EXPECT_EQ(
        std::ranges::count(groups.front().timings, Storage::tiles, &train::StorageTiming::storage),
        table == &testing::late_table() ? 0 : 1);
  }
}

}  // namespace
}  // namespace espalier::sparse::sparse_lists_test
