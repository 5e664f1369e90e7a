// Attention on tensor cores beyond the case table:
// - shapes of several tiles, in both orders of threads;
// - scores of 10,000, NaN, operands that are not aligned;
// - the layout of tiles in shared memory, and the order in which blocks begin.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "src/kernels/cuda/attention/tile.h"
#include "src/kernels/cuda/table.h"
#include "tests/kernels/cudnn_way.h"
#include "tests/kernels/kernel_cases.h"
#include "tests/kernels/kernel_checks.h"

namespace espalier::kernels::attention_test {
namespace {

using reference::Attention;

/// Each width with a kernel, and some between; several tiles, with an incomplete last one.
const std::vector<Attention>& shapes() {
  static const std::vector<Attention> all{
      {2, 201, 2, 32},
      {1, 259, 2, 64},
      {1, 141, 1, 96},
      {1, 137, 1, 128},
      {1, 100, 3, 8},
      {2, 66, 1, 72},
      {1, 128, 2, 64},
      {1, 67, 1, 120},
      {2, 201, 2, 32, false},
      {1, 259, 2, 64, false},
      {1, 141, 1, 96, false},
      {1, 137, 1, 128, false},
      {1, 100, 3, 8, false},
      // Shared keys and values; windows within a tile, across tiles, and in several.
      {2, 201, 4, 32, true, 2},
      {1, 259, 6, 64, true, 2},
      {1, 141, 2, 96, false, 1},
      {1, 137, 3, 128, true, 1},
      {2, 201, 2, 32, true, 0, 1},
      {1, 300, 2, 64, true, 1, 7},
      {1, 300, 2, 64, true, 2, 64},
      {1, 330, 2, 64, true, 1, 129, 0.2F},
      {1, 261, 1, 96, true, 0, 33},
      {1, 300, 2, 128, true, 1, 100},
      {1, 137, 1, 120, true, 0, 200}};
  return all;
}
std::string text(const Attention& s) {
  return fmt::format("{}x{} heads {}x{}{} of {} window {}", s.sequences, s.tokens, s.heads, s.width,
                     s.causal ? "" : " all", s.groups(), s.window);
}

TEST(SimtAttention, agrees_with_the_reference_over_several_tiles) {
  Cases cases;
  add_attention_cases(cases, kBf16);
  for (const Attention& shape : shapes()) {
    cases.push_back(attention_case(shape, kBf16));
    cases.push_back(attention_backward_case(shape, kBf16));
  }
  const testing::AttentionWay way("own");
  for (const Case& one : cases) {
    expect_reference(one, tested_tables().front(), expected(one),
                     std::numeric_limits<int64_t>::max());
  }
}

/// qkv, out, lse, dout, dqkv in memory, for kernels that a test selects.
struct Operands {
  Memories memories;
  cuda_simt::AttentionShapes shapes;
  std::vector<float> delta;

  Operands(const Case& backward, const Attention& s)
      : memories(backward), delta(static_cast<size_t>(s.sequences * s.heads * s.tokens)) {
    const Tensors& t = memories.tensors();
    shapes = {.qkv = cuda_simt::elements(t[0]),
              .out = cuda_simt::elements(t[1]),
              .dout = cuda_simt::elements(t[3]),
              .dqkv = cuda_simt::elements(t[4]),
              .lse = t[2].get<float>(),
              .delta = delta.data(),
              .sequences = s.sequences,
              .tokens = s.tokens,
              .heads = s.heads,
              .width = s.width,
              .group = s.heads / s.groups(),
              .scale = static_cast<float>(s.factor()),
              .causal = s.causal,
              .window = s.window};
  }
  template <class Forward, class Backward>
  void run(const Forward& forward, const Backward& backward) {
    tested_tables().front().with_stream(0, [&](Stream& stream) {
      forward(stream, shapes);
      backward(stream, shapes);
    });
  }
  Values values(size_t operand) const {
    const Tensor& t = memories.tensors()[operand];
    Values all;
    for (int64_t i = 0; i < t.count(); ++i) {
      all.push_back(kernels::read(t, i));
    }
    return all;
  }
};

/// Scores up to 10,000 and more: one key has all the weight, and neither pass overflows.
TEST(SimtAttention, bears_scores_of_ten_thousand) {
  for (const Attention& shape : {Attention{1, 150, 1, 64},
                                 {1, 70, 2, 96},
                                 {1, 150, 1, 64, false},
                                 {1, 150, 2, 64, true, 1, 70}}) {
    Case one = attention_case(shape, kBf16);
    for (double& value : one.operands[0].values) {
      value = rounded(kBf16, 60 * value);
    }
    const std::vector<Values> want = expected(one);
    EXPECT_GT(*std::ranges::max_element(want[2]), 1e4);
    Case backward = attention_backward_case(shape, kBf16);
    backward.operands[0] = one.operands[0];
    Operands operands(backward, shape);
    operands.run(cuda_simt::attention_by_tiles, cuda_simt::attention_backward_by_tiles);
    for (const size_t i : {0U, 1U, 2U, 4U}) {
      for (const double value : operands.values(i)) {
        ASSERT_TRUE(std::isfinite(value)) << text(shape) << " operand " << i;
      }
    }
    const Values lse = operands.values(2);
    for (size_t i = 0; i < lse.size(); ++i) {
      ASSERT_NEAR(lse[i], want[2][i], 1e-3 + 4e-6 * std::fabs(want[2][i]));
    }
  }
}

/// A NaN in one row reaches all results that depend on it, and no row before its tile.
TEST(SimtAttention, passes_on_nan) {
  const Attention shape{1, 200, 1, 64};
  constexpr int64_t kRow = 150;
  for (const int part : {0, 1, 2}) {
    const Case one = attention_backward_case(shape, kBf16);
    Operands operands(one, shape);
    kernels::write(operands.memories.tensors()[0],
                   static_cast<int64_t>(shape.at(0, kRow, part, 0, 3)),
                   std::numeric_limits<double>::quiet_NaN());
    operands.run(cuda_simt::attention_by_tiles, cuda_simt::attention_backward_by_tiles);
    const Values out = operands.values(1);
    const Values gradient = operands.values(4);
    const auto nan_at = [&](int64_t t) { return std::isnan(out[shape.out_at(0, t, 0, 3)]); };
    EXPECT_TRUE(nan_at(kRow)) << part;
    EXPECT_EQ(nan_at(shape.tokens - 1), part != 0) << part;
    for (int64_t t = 0; t < 128; ++t) {
      EXPECT_FALSE(nan_at(t)) << part << " " << t;
    }
    EXPECT_TRUE(std::isnan(gradient[shape.at(0, kRow, 0, 0, 3)])) << part;
    EXPECT_TRUE(std::isnan(gradient[shape.at(0, kRow, 1, 0, 3)])) << part;
  }
}

/// Two bytes beside an aligned address: the kernels by rows compute the same formula.
TEST(SimtAttention, operands_that_are_not_aligned_go_by_rows) {
  const Attention shape{1, 20, 2, 32};
  const Case one = attention_case(shape, kBf16);
  const std::vector<Values> want = expected(one);
  Memories memories(one);
  std::vector<bf16> moved(static_cast<size_t>(memories.tensors()[0].count()) + 9);
  auto* first = moved.data();
  while (reinterpret_cast<uintptr_t>(first) % 16 != 2) {
    ++first;
  }
  Tensors tensors = memories.tensors();
  std::copy_n(tensors[0].get<bf16>(), tensors[0].count(), first);
  tensors[0] = Tensor(first, kBf16, tensors[0].shape);
  EXPECT_FALSE(cuda_simt::attention_fits_tiles(
      {.qkv = cuda_simt::elements(tensors[0]), .heads = 2, .width = 32}));
  const testing::AttentionWay way("own");
  tested_tables().front().with_stream(
      0, [&](Stream& stream) { one.run(cuda_simt::table(), stream, tensors); });
  EXPECT_EQ(mismatch(one.operands[1], tensors[1], want[1]), "");
}

/// The eight rows of a matrix of ldmatrix lie in eight different groups of four banks, as do the
/// rows that store_rows writes.
template <int kD>
void expect_no_conflicts() {
  using Tile = cuda_simt::Tile<kD>;
  for (int row = 0; row < 64; row += 8) {
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      std::set<int> groups;
      for (int i = 0; i < 8; ++i) {
        groups.insert(Tile::place(row + i, chunk) % 8);
      }
      EXPECT_EQ(groups.size(), 8U) << kD << " row " << row << " chunk " << chunk;
    }
  }
  std::set<int> places;
  for (int i = 0; i < 64 * Tile::kChunks; ++i) {
    places.insert(Tile::place(i / Tile::kChunks, i % Tile::kChunks));
  }
  EXPECT_EQ(places.size(), 64U * Tile::kChunks);
  EXPECT_EQ(*places.rbegin(), 64 * Tile::kChunks - 1);
}

TEST(SimtAttention, matrices_lie_in_different_banks) {
  expect_no_conflicts<32>();
  expect_no_conflicts<64>();
  expect_no_conflicts<96>();
  expect_no_conflicts<128>();
}

TEST(SimtAttention, blocks_begin_with_most_work_of_pairs_that_fit_the_cache) {
  for (const cuda_simt::AttentionOrder& order :
       {cuda_simt::AttentionOrder{8, 192, 64}, {3, 7, 4}, {1, 5, 2}, {5, 1, 9}, {2, 6, 3}}) {
    std::set<std::pair<unsigned, unsigned>> seen;
    cuda_simt::AttentionTurn last{0, 0};
    for (unsigned block = 0; block < order.tiles * order.pairs; ++block) {
      const cuda_simt::AttentionTurn turn = order.turn(block);
      EXPECT_LT(turn.pair, order.pairs);
      EXPECT_LT(turn.rank, order.tiles);
      EXPECT_TRUE(seen.insert({turn.pair, turn.rank}).second);
      const bool same = turn.pair / order.together == last.pair / order.together;
      EXPECT_GE(turn.pair / order.together, last.pair / order.together);
      EXPECT_TRUE(!same || turn.rank >= last.rank);
      last = turn;
    }
    EXPECT_EQ(seen.size(), size_t{order.tiles} * order.pairs);
  }
  // k and v take 256 KiB per pair of GPT-2: 64 of them in 16 MiB.
  const auto order = cuda_simt::attention_order({.tokens = 1024, .width = 64}, 16 * 12, 128);
  EXPECT_EQ(order.tiles, 8U);
  EXPECT_EQ(order.pairs, 192U);
  EXPECT_EQ(order.together, 64U);
}

}  // namespace
}  // namespace espalier::kernels::attention_test
