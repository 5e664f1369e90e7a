// Products with blocks on the table "cuda-simt": the kernel chosen for each product, and the tiles
// of products that are large enough for them. The kernel cases cover small products
// (kernels_test.cpp).
#include "src/kernels/cuda/table.h"
#include "tests/kernels/kernel_cases_block.h"
#include "tests/kernels/kernel_memory.h"
#include "tests/simt/queue.h"
#include "tests/support/matchers.h"

namespace espalier::kernels::block_test {
namespace {

using simt::Order;

BlockPatternPointer pattern(const Shape& shape, const Shape& block) {
  return std::make_shared<const BlockPattern>(shape, block, 0.6);
}

/// Runs a case; returns its launches.
std::vector<simt::Grid> run(const Case& one, const Memories& memories, Order order) {
  Arena arena;
  simt::Queue queue(order);
  Stream stream(arena, 1, &queue);
  one.run(cuda_simt::table(), stream, memories.tensors());
  stream.synchronize();
  return queue.launches();
}

std::vector<std::string> kernels_of(const Case& one) {
  std::vector<std::string> names;
  for (const simt::Grid& grid : run(one, Memories(one), Order::ascending)) {
    names.emplace_back(grid.name);
  }
  return names;
}

TEST(BlockProducts, tensor_cores_take_bf16_in_whole_pieces) {
  const auto w = pattern({104, 104}, {32, 48});
  const WeightCall call{.tokens = 40, .in = kBf16, .out = kFp32, .margin = 8};
  EXPECT_THAT(kernels_of(spmm_case_of<BlockMatrix>(w, call)), ElementsAre("block_spmm"));
  EXPECT_THAT(kernels_of(spmm_transposed_case_of<BlockMatrix>(w, call)),
              ElementsAre("list_columns", "block_spmm_transposed"));
  EXPECT_THAT(kernels_of(sddmm_case_of<BlockMatrix>(w, call)), ElementsAre("block_sddmm"));
  const WeightCall many{.tokens = 520, .in = kBf16, .out = kFp32, .margin = 8};
  EXPECT_THAT(kernels_of(sddmm_case_of<BlockMatrix>(w, many)),
              ElementsAre("block_sddmm", "add_parts"));
}

TEST(BlockProducts, others_go_row_by_row) {
  const auto expect_rows = [](const BlockPatternPointer& w, const WeightCall& call) {
    EXPECT_THAT(kernels_of(spmm_case_of<BlockMatrix>(w, call)), ElementsAre("block_spmm_by_rows"));
    EXPECT_THAT(kernels_of(spmm_transposed_case_of<BlockMatrix>(w, call)),
                ElementsAre("block_spmm_transposed_by_rows"));
    EXPECT_THAT(kernels_of(sddmm_case_of<BlockMatrix>(w, call)),
                ElementsAre("block_sddmm_by_rows"));
  };
  const auto w = pattern({96, 104}, {32, 48});
  expect_rows(w, {.tokens = 5, .in = kFp32, .margin = 8});
  expect_rows(w, {.tokens = 5, .in = kBf16, .margin = 3});
  expect_rows(pattern({96, 104}, {24, 48}), {.tokens = 5, .in = kBf16, .margin = 8});
  expect_rows(pattern({96, 104}, {32, 40}), {.tokens = 5, .in = kBf16, .margin = 8});
  expect_rows(pattern({96, 104}, {32, 2048}), {.tokens = 5, .in = kBf16, .margin = 8});
}

TEST(BlockProducts, only_the_gradient_may_have_values_across_pieces) {
  const auto w = pattern({96, 100}, {32, 48});
  const WeightCall call{.tokens = 5, .in = kBf16, .margin = 8};
  EXPECT_THAT(kernels_of(spmm_case_of<BlockMatrix>(w, call)), ElementsAre("block_spmm_by_rows"));
  EXPECT_THAT(kernels_of(spmm_transposed_case_of<BlockMatrix>(w, call)),
              ElementsAre("block_spmm_transposed_by_rows"));
  EXPECT_THAT(kernels_of(sddmm_case_of<BlockMatrix>(w, call)), ElementsAre("block_sddmm"));
}

/// A kernel that reads beyond the rows of dy adds those elements.
TEST(BlockProducts, the_transposed_ends_with_a_piece_of_rows) {
  const auto w = pattern({100, 104}, {32, 48});
  const WeightCall call{.tokens = 40, .in = kBf16, .out = kFp32, .margin = 8};
  EXPECT_THAT(kernels_of(spmm_case_of<BlockMatrix>(w, call)), ElementsAre("block_spmm"));
  EXPECT_THAT(kernels_of(spmm_transposed_case_of<BlockMatrix>(w, call)),
              ElementsAre("block_spmm_transposed_by_rows"));
  EXPECT_THAT(kernels_of(sddmm_case_of<BlockMatrix>(w, call)), ElementsAre("block_sddmm"));
}

/// The result equals the reference, with the same bits in both orders, and the last kernel has
/// `high` tiles along the tokens.
void expect_right(const Case& one, unsigned high) {
  const Memories first(one);
  const Memories second(one);
  EXPECT_EQ(run(one, first, Order::ascending).back().blocks.y, high) << one.name;
  run(one, second, Order::descending);
  EXPECT_TRUE(first.bytes() == second.bytes()) << one.name;
  EXPECT_EQ(mismatch(one, first.tensors(), expected(one)), "") << one.name;
}

/// 132 blocks side by side and two tiles along the tokens give two tiles for each of an H100's SMs;
/// with one token fewer a product gets small tiles.
TEST(BlockProducts, large_products_have_large_tiles) {
  for (const auto& [extent, tokens, high] : {std::tuple{16, 257, 2U}, std::tuple{16, 256, 4U},
                                             std::tuple{48, 257, 2U}, std::tuple{80, 129, 2U}}) {
    const WeightCall call{.tokens = tokens,
                          .in = kBf16,
                          .out = kBf16,
                          .activation = Activation::gelu,
                          .extra = true,
                          .bias = true,
                          .margin = 8};
    const auto tall = pattern({132 * extent - 5, 40}, {extent, 32});
    expect_right(spmm_case_of<BlockMatrix>(tall, call), high);
    const auto wide = pattern({40, 132 * extent - 8}, {32, extent});
    expect_right(spmm_transposed_case_of<BlockMatrix>(wide, call), high);
  }
}

}  // namespace
}  // namespace espalier::kernels::block_test
