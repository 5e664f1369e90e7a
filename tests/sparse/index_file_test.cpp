// Masks in files: every encoding restores every mask; sizes; the choice of the encoding.
#include "sparse/index/file_index.h"

#include <gtest/gtest.h>

#include "tests/sparse/index_example.h"

namespace espalier::sparse::index_file_test {
namespace {

Mask back(const Index& index, const FileIndex& file) {
  return mask_from_file(file.encoding, index.size(), index.kept(), file.bytes);
}

TEST(IndexFile, EveryMaskComesBack) {
  Arena arena;
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.label());
    const Index index(arena, example.mask, example.encoding, example.shape);
    for (const FileIndex& file :
         {to_file(index), to_file(index, index.encoding()), to_file(index, Encoding::golomb)}) {
      EXPECT_EQ(back(index, file), example.mask) << file.encoding.name;
      EXPECT_EQ(file.encoding == Encoding::full, index.encoding() == Encoding::full);
    }
  }
}

TEST(IndexFile, TheCodeDoesNotDependOnTheIndexInMemory) {
  Arena arena;
  const Mask mask = random_mask(10'000, 0.1, 3);
  const auto code = to_file(Index(arena, mask, Encoding::int32, {.cols = 100})).bytes;
  EXPECT_EQ(to_file(Index(arena, mask, Encoding::golomb, {.cols = 100})).bytes, code);
}

TEST(IndexFile, RandomMasksTakeTheirEntropy) {
  Arena arena;
  constexpr int64_t kRows = 768;
  for (double density : {0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01}) {
    const Mask mask = random_mask(kRows * kRows, density, 5);
    const double bound = entropy_bound_bytes(mask.size(), mask.kept());
    const FileIndex file = to_file(Index(arena, mask, Encoding::bitmap));
    EXPECT_EQ(file.encoding, Encoding::golomb);
    EXPECT_LT(static_cast<double>(file.bytes.size()), 1.05 * bound + 64) << density;
  }
}

TEST(IndexFile, FormsOfMasksAreKeptWhereTheyAreSmaller) {
  Arena arena;
  const IndexShape shape{.cols = 768, .height = 16, .width = 16, .n = 2, .m = 4};
  const Index block(arena, block_mask(512, shape, 0.1, 2), Encoding::block, shape);
  EXPECT_EQ(to_file(block).encoding, Encoding::block);
  const Index nm(arena, nm_mask(512, shape, 0, 2), Encoding::nm, shape);
  EXPECT_EQ(to_file(nm).encoding, Encoding::golomb) << "with the gaps of this mask";
  EXPECT_EQ(to_file(nm, Encoding::nm).encoding, Encoding::nm);
  EXPECT_EQ(to_file(nm, Encoding::int32).encoding, Encoding::int32);
  EXPECT_EQ(to_file(Index::full(7)).encoding, Encoding::full);
  EXPECT_TRUE(to_file(Index::full(7)).bytes.empty());
}

}  // namespace
}  // namespace espalier::sparse::index_file_test
