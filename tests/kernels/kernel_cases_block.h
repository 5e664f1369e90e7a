#pragma once
// Cases of the products with BlockMatrix: square and thin blocks, matrices whose edges cut blocks,
// empty rows of blocks, no blocks, strided rows of activations.
#include "tests/kernels/kernel_cases_weights.h"

namespace espalier::kernels {

/// The kept blocks of a matrix; owns the arrays of a BlockMatrix.
struct BlockPattern final : WeightPattern<BlockMatrix> {
  int64_t height, width;
  std::vector<int32_t> block_begin{0}, value_begin{0}, block_column;
  Reach reach;

  /// Keeps each block with probability `density`; the second row of blocks is empty.
  BlockPattern(const Shape& shape, const Shape& block, double density)
      : height(block[0]), width(block[1]) {
    rows = shape[0];
    cols = shape[1];
    const int64_t across = (cols + width - 1) / width;
    for (int64_t row = 0; row * height < rows; ++row) {
      std::vector<int32_t> columns;
      for (int64_t column = 0; column < across; ++column) {
        const auto block_id = static_cast<uint64_t>(row * across + column);
        if (row != 1 && uniform(philox(5, 11, block_id)[0]) < density) {
          columns.push_back(static_cast<int32_t>(column));
        }
      }
      add_row(columns);
    }
  }

  /// Appends a row of blocks.
  void add_row(const std::vector<int32_t>& columns) {
    const auto row = static_cast<int64_t>(block_begin.size()) - 1;
    for (int64_t r = row * height; r < std::min(rows, (row + 1) * height); ++r) {
      for (const int32_t column : columns) {
        for (int64_t c = column * width; c < std::min(cols, (column + 1) * width); ++c) {
          positions.push_back(r * cols + c);
        }
      }
    }
    block_column.insert(block_column.end(), columns.begin(), columns.end());
    block_begin.push_back(static_cast<int32_t>(block_column.size()));
    value_begin.push_back(static_cast<int32_t>(positions.size()));
  }

  BlockMatrix matrix(Stream& stream, const Tensor& values,
                     std::unique_ptr<Prepared>&) const override {
    return view(stream, values);
  }
  BlockMatrix view(Stream& stream, const Tensor& values) const {
    return {.rows = rows,
            .cols = cols,
            .height = height,
            .width = width,
            .values = values,
            .block_begin = reach.of(stream, block_begin),
            .value_begin = reach.of(stream, value_begin),
            .block_column = reach.of(stream, block_column)};
  }
  std::string text() const override {
    return fmt::format("{}x{}_blocks{}x{}_kept{}", rows, cols, height, width, kept());
  }
  Tolerance tolerance(int64_t terms) const override {
    return {1e-6 + 6e-8 * static_cast<double>(terms), 1e-5};
  }
};
using BlockPatternPointer = std::shared_ptr<const BlockPattern>;

/// All three products with one pattern. The call's flags follow `variant`, so that few cases cover
/// many combinations.
inline void add_block_verbs(Cases& cases, const BlockPatternPointer& w, int64_t tokens,
                            int variant) {
  const Activation functions[] = {Activation::gelu, Activation::none, Activation::relu};
  const std::pair<DType, DType> types[] = {
      {kFp32, kFp32}, {kBf16, kBf16}, {kBf16, kFp32}, {kFp16, variant % 3 == 0 ? kFp32 : kFp16}};
  for (const auto& [in, out] : types) {
    const WeightCall call{.tokens = tokens,
                          .in = in,
                          .out = out,
                          .activation = functions[variant % 3],
                          .extra = variant % 2 == 0,
                          .bias = variant % 2 == 0,
                          .accumulate = variant % 4 < 2,
                          .margin = variant % 8 < 4 ? 3 : 0};
    add_weight_products<BlockMatrix>(cases, w, call);
    ++variant;
  }
}

/// Products on tensor cores: 16-bit operands with rows aligned to 16 bytes. Blocks of each size of
/// tiles, cut at both edges, of a narrow and a wide matrix. Tokens that do not fill a tile, and
/// enough tokens for several blocks of threads.
inline void add_block_tile_cases(Cases& cases, DType half) {
  int variant = 0;
  const auto add = [&](const BlockPatternPointer& w, int64_t tokens) {
    const Activation functions[] = {Activation::gelu, Activation::none, Activation::relu};
    const WeightCall call{.tokens = tokens,
                          .in = half,
                          .out = variant % 2 == 0 ? half : kFp32,
                          .activation = functions[variant % 3],
                          .extra = variant % 4 < 2,
                          .bias = variant % 4 < 2,
                          .accumulate = variant % 8 < 4,
                          .margin = 8};
    add_weight_products<BlockMatrix>(cases, w, call);
    ++variant;
  };
  for (const Shape& block : {Shape{16, 16}, Shape{32, 32}, Shape{64, 64}, Shape{128, 128},
                             Shape{48, 16}, Shape{16, 80}, Shape{256, 32}}) {
    add(std::make_shared<const BlockPattern>(Shape{150, 104}, block, 0.4), 33);
    add(std::make_shared<const BlockPattern>(Shape{101, 328}, block, 0.6), 70);
  }
  const auto narrow = std::make_shared<const BlockPattern>(Shape{80, 72}, Shape{32, 16}, 0.5);
  add(narrow, 600);
  add(narrow, 1);
}

inline void add_block_cases(Cases& cases) {
  int variant = 0;
  const Shape blocks[] = {{32, 32}, {16, 16}, {64, 64}, {4, 4},  {1, 16}, {16, 1}, {4, 1},
                          {1, 8},   {3, 5},   {24, 40}, {17, 2}, {1, 1},  {8, 8},  {48, 6}};
  for (const Shape& block : blocks) {
    for (const Shape& shape : {Shape{96, 64}, Shape{70, 101}}) {
      const auto w = std::make_shared<const BlockPattern>(shape, block, 0.3);
      add_block_verbs(cases, w, 1, variant++);
      add_block_verbs(cases, w, 37, variant++);
    }
    // Chunks of tokens, and enough work for several threads.
    const auto large = std::make_shared<const BlockPattern>(Shape{200, 130}, block, 0.3);
    add_block_verbs(cases, large, 301, variant++);
  }
  for (const double density : {0.0, 1.0}) {
    const auto w = std::make_shared<const BlockPattern>(Shape{64, 128}, Shape{16, 32}, density);
    add_block_verbs(cases, w, 10, variant++);
  }
  add_block_tile_cases(cases, kBf16);
  add_block_tile_cases(cases, kFp16);
}

}  // namespace espalier::kernels
