// The blocks of a mask: detection, refused masks, and the list that products read; then a weight in
// blocks against the same one with a dense copy.
#include "sparse/index/block_list.h"

#include <tuple>

#include "sparse/weight/weight.h"
#include "src/core/rng.h"
#include "tests/support/failure.h"

namespace espalier::sparse::block_list_test {
namespace {

/// Keeps each block of `shape` with probability `density`.
Mask mask_of_blocks(const Shape& shape, const BlockSize& block, double density, uint64_t seed = 1) {
  Mask mask(shape.count(), false);
  for (int64_t i = 0; i < shape.count(); ++i) {
    const int64_t line = i / shape.cols() / block.height;
    const int64_t column = i % shape.cols() / block.width;
    const auto id = static_cast<uint64_t>(line * shape.cols() + column);
    mask.set(i, uniform(philox(seed, 0, id)[0]) < density);
  }
  return mask;
}

/// Checks the definition: kept and pruned elements meet only at the edges of blocks.
bool consists_of(const Mask& mask, int64_t cols, const BlockSize& block) {
  for (int64_t i = 0; i < mask.size(); ++i) {
    const int64_t first =
        i / cols / block.height * block.height * cols + i % cols / block.width * block.width;
    if (mask[i] != mask[first]) {
      return false;
    }
  }
  return true;
}

/// Positions of the elements in the order of a list's values.
std::vector<int32_t> positions_of(const kernels::BlockMatrix& matrix) {
  std::vector<int32_t> positions;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const int64_t line = row / matrix.height;
    if (row % matrix.height == 0) {
      EXPECT_EQ(matrix.value_begin[line], static_cast<int64_t>(positions.size()));
    }
    for (int32_t b = matrix.block_begin[line]; b < matrix.block_begin[line + 1]; ++b) {
      const int64_t begin = matrix.block_column[b] * matrix.width;
      for (int64_t col = begin; col < std::min(matrix.cols, begin + matrix.width); ++col) {
        positions.push_back(static_cast<int32_t>(row * matrix.cols + col));
      }
    }
  }
  const int64_t lines = (matrix.rows + matrix.height - 1) / matrix.height;
  EXPECT_EQ(matrix.value_begin[lines], static_cast<int64_t>(positions.size()));
  return positions;
}

using BlockCase = std::tuple<Shape, BlockSize>;
class Blocks : public ::testing::TestWithParam<BlockCase> {
 protected:
  Shape shape() const { return std::get<0>(GetParam()); }
  BlockSize block() const { return std::get<1>(GetParam()); }
};

TEST_P(Blocks, AreFoundAndListedInTheOrderOfValues) {
  Arena arena;
  for (const double density : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    const Mask mask = mask_of_blocks(shape(), block(), density);
    const BlockSize divisors = boundaries(mask, shape().cols());
    EXPECT_EQ(divisors.height % block().height, 0);
    EXPECT_EQ(divisors.width % block().width, 0);
    const auto found = find_blocks(mask, shape(), {.edge = 16});
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(consists_of(mask, shape().cols(), *found));
    for (const BlockSize& size : {*found, block()}) {
      const BlockList list(arena, mask, shape(), size);
      const Tensor values(nullptr, DType::fp32, Shape{mask.kept()});
      EXPECT_EQ(positions_of(list.matrix(values)), mask.positions()) << density;
    }
  }
}

TEST_P(Blocks, NoOtherSizeFits) {
  const Mask mask = mask_of_blocks(shape(), block(), 0.5);
  Arena arena;
  for (const int64_t height : {1, 2, 3, 5, 8, 16, 24, 32, 64}) {
    for (const int64_t width : {1, 2, 3, 5, 8, 16, 24, 32, 64}) {
      const BlockSize size{height, width};
      const bool fits = failure_of([&] { BlockList(arena, mask, shape(), size); }).empty();
      EXPECT_EQ(fits, consists_of(mask, shape().cols(), size)) << height << "x" << width;
    }
  }
}

TEST_P(Blocks, BytesAreCountedWithTheIndex) {
  const Mask mask = mask_of_blocks(shape(), block(), 0.3);
  for (const bool dry : {false, true}) {
    Arena arena(dry);
    {
      const BlockList list(arena, mask, shape(), block());
      const int64_t lines = (shape().rows() + block().height - 1) / block().height;
      EXPECT_EQ(list.bytes(), static_cast<size_t>(4 * list.count() + 8 * (lines + 1)));
      EXPECT_EQ(arena.use(Memory::index).now, list.bytes());
    }
    EXPECT_EQ(arena.use(Memory::index).now, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Blocks,
    ::testing::Combine(::testing::Values(Shape{128, 192}, Shape{70, 101}, Shape{97, 65}),
                       ::testing::Values(BlockSize{32, 32}, BlockSize{16, 16}, BlockSize{8, 8},
                                         BlockSize{64, 64}, BlockSize{1, 16}, BlockSize{16, 1},
                                         BlockSize{4, 1}, BlockSize{3, 5}, BlockSize{24, 40})));

TEST(BlockSearch, CutsLargeBlocksAndTakesTheRequestedOnesWhereAnyFit) {
  auto found = [](const BlockSize& block) {
    const Shape shape{1200, 1200};
    return find_blocks(mask_of_blocks(shape, block, 0.5), shape, {.edge = 16}).value();
  };
  EXPECT_EQ(found({64, 32}), (BlockSize{64, 32}));
  EXPECT_EQ(found({128, 96}), (BlockSize{64, 48}));
  EXPECT_EQ(found({80, 97}), (BlockSize{16, 97}));
  const Shape shape{100, 10};
  EXPECT_EQ(find_blocks(Mask(1000, false), shape, {.edge = 16}), (BlockSize{16, 10}));
  EXPECT_EQ(find_blocks(Mask(1000), shape, {.edge = 64, .exact = true}), (BlockSize{64, 10}));
}

TEST(BlockSearch, RefusesSingleElementsAndNamesTheFill) {
  const Shape shape{128, 128};
  const Mask mask = mask_of_blocks(shape, {1, 1}, 0.002, 3);
  const BlockSize square{32, 32};
  double covered = 0;
  for (int64_t row = 0; row < 128; row += 32) {
    for (int64_t col = 0; col < 128; col += 32) {
      bool any = false;
      for (int64_t i = 0; i < 1024; ++i) {
        any = any || mask[(row + i / 32) * 128 + col + i % 32];
      }
      covered += any ? 1.0 / 16 : 0;
    }
  }
  EXPECT_GT(covered, mask.density());
  EXPECT_LT(covered, 1.0) << "the case says something";
  EXPECT_DOUBLE_EQ(covering_density(mask, 128, square), covered);
  for (const bool exact : {false, true}) {
    const std::string message =
        failure_of([&] { choose_blocks(mask, shape, {.edge = 32, .exact = exact}); });
    EXPECT_THAT(message, HasSubstr(fmt::format("whole 32x32 blocks would hold {:.1f} % instead of "
                                               "{:.1f} %",
                                               100 * covered, 100 * mask.density())));
    EXPECT_THAT(message, HasSubstr("sparse.storage = \"sparse\" or \"auto\""));
  }
}

TEST(BlockSearch, AnExactRequestThatFailsNamesPossibleBlocks) {
  const Shape shape{96, 96};
  const Mask mask = mask_of_blocks(shape, {16, 8}, 0.5);
  EXPECT_EQ(choose_blocks(mask, shape, {.edge = 8, .exact = true}), (BlockSize{8, 8}));
  EXPECT_EQ(choose_blocks(mask, shape, {.edge = 32}), (BlockSize{16, 8}));
  const std::string message =
      failure_of([&] { choose_blocks(mask, shape, {.edge = 32, .exact = true}); });
  EXPECT_THAT(message, HasSubstr("\"block\" without an edge for the blocks of 16x8"));
}

/// Two stores with the same values and masks: one in blocks, one with dense copies.
class BlockWeight : public ::testing::TestWithParam<std::tuple<DType, BlockSize>> {
 protected:
  static constexpr int64_t kRows = 70, kCols = 101, kTokens = 37;

  struct Side {
    Arena arena;
    Stream stream{arena, 2};
    const kernels::Kernels& kernels = kernels::by_name("cpu");
    Store store;
    Weight weight;
    explicit Side(Storage storage)
        : store(stream, kernels, {{.name = "w", .shape = Shape{kRows, kCols}, .prunable = true}},
                {.dtype = std::get<0>(GetParam()),
                 .gradient = DType::fp32,
                 .storage = [storage](const std::string&) { return storage; }}),
          weight(store, kernels, store.parameters().front()) {
      std::vector<float> values(kRows * kCols);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(uniform(philox(7, 0, i)[0])) - 0.5F;
      }
      store.set_values(store.parameters().front(), values);
    }
    void set_mask(const Mask& mask) { store.set_masks(std::vector{mask}); }

    Buffer activations(int64_t width, uint64_t key) {
      Buffer made = arena.allocate(Memory::scratch, "x", std::get<0>(GetParam()), {kTokens, width});
      for (int64_t i = 0; i < kTokens * width; ++i) {
        const float value =
            static_cast<float>(uniform(philox(key, 0, static_cast<uint64_t>(i))[0])) - 0.5F;
        if (made.tensor().dtype == DType::fp32) {
          made.tensor().get<float>()[i] = value;
        } else {
          made.tensor().get<bf16>()[i] = to_bf16(value);
        }
      }
      return made;
    }

    /// y, dx and the kept gradient, one after the other.
    std::vector<float> results() {
      const Buffer x = activations(kCols, 1);
      const Buffer dy = activations(kRows, 2);
      const Buffer bias = arena.allocate(Memory::scratch, "bias", DType::fp32, {kRows});
      bias.tensor().get<float>()[3] = 2;
      const Buffer y = arena.allocate(Memory::scratch, "y", DType::fp32, {kTokens, kRows});
      const Buffer dx = arena.allocate(Memory::scratch, "dx", DType::fp32, {kTokens, kCols});
      weight.apply(stream, {.x = x.tensor(), .y = y.tensor(), .bias = bias.tensor()});
      weight.apply_transposed(stream, {.dy = dy.tensor(), .dx = dx.tensor()});
      weight.accumulate_gradient(stream, {.dy = dy.tensor(), .x = x.tensor()});
      weight.accumulate_gradient(stream, {.dy = dy.tensor(), .x = x.tensor(), .accumulate = true});
      std::vector<float> all;
      const Tensor gradient = store.part(store.gradient(), store.parameters().front());
      for (const Tensor& part : {y.tensor(), dx.tensor(), gradient}) {
        all.insert(all.end(), part.get<float>(), part.get<float>() + part.count());
      }
      return all;
    }
  };

  static Mask mask(double density, uint64_t seed) {
    return mask_of_blocks({kRows, kCols}, std::get<1>(GetParam()), density, seed);
  }
};

TEST_P(BlockWeight, ComputesWhatADenseCopyDoesUnderAnyMaskOfBlocks) {
  Side blocks(Storage::block);
  Side dense(Storage::dense);
  for (const double density : {1.0, 0.6, 0.3, 0.5, 0.0, 1.0}) {
    for (Side* side : {&blocks, &dense}) {
      side->set_mask(mask(density, 5));
    }
    const std::vector<float> got = blocks.results();
    const std::vector<float> want = dense.results();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 2e-5) << "density " << density << ", number " << i;
    }
    const Parameter& parameter = blocks.store.parameters().front();
    const bool listed = !parameter.full() && !is_thin(std::get<1>(GetParam()));
    EXPECT_EQ(static_cast<bool>(parameter.blocks), listed || parameter.kept() == 0);
    EXPECT_EQ(blocks.arena.use(Memory::index).now,
              parameter.index.bytes() + parameter.blocks.bytes());
  }
}

TEST_P(BlockWeight, ARefusedMaskOrStorageChangesNothing) {
  Side side(Storage::block);
  side.set_mask(mask(0.5, 5));
  const std::vector<float> before = side.results();
  Mask single(kRows * kCols, false);
  single.set(kCols + 1, true);
  single.set(3 * kCols + 4, true);
  EXPECT_THAT(failure_of([&] { side.set_mask(single); }), HasSubstr("\"w\": storage \"block\""));
  EXPECT_EQ(side.results(), before);
  Parameter& parameter = side.store.parameters().front();
  side.store.set_storage(parameter, Storage::sparse);
  side.set_mask(single);
  EXPECT_THAT(failure_of([&] { side.store.set_storage(parameter, Storage::block); }),
              HasSubstr("instead of"));
  EXPECT_EQ(parameter.storage, Storage::sparse);
  EXPECT_FALSE(parameter.blocks);
}

INSTANTIATE_TEST_SUITE_P(All, BlockWeight,
                         ::testing::Combine(::testing::Values(DType::fp32, DType::bf16),
                                            ::testing::Values(BlockSize{16, 16}, BlockSize{32, 32},
                                                              BlockSize{1, 16}, BlockSize{4, 1})));

}  // namespace
}  // namespace espalier::sparse::block_list_test
