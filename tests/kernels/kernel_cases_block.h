#pragma once
// Cases of the products with BlockMatrix: square and thin blocks, matrices whose edges cut blocks,
// empty rows of blocks, no blocks, strided rows of activations.
#include "tests/kernels/kernel_cases.h"

namespace espalier::kernels {

/// The kept blocks of a matrix; owns the arrays of a BlockMatrix.
struct BlockPattern {
  int64_t rows, cols, height, width;
  std::vector<int32_t> block_begin{0}, value_begin{0}, block_column;
  std::vector<int64_t> positions;  ///< of the kept elements, in storage order
  Reach reach;

  /// Keeps each block with probability `density`; the second row of blocks is empty.
  BlockPattern(const Shape& shape, const Shape& block, double density)
      : rows(shape[0]), cols(shape[1]), height(block[0]), width(block[1]) {
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

  int64_t kept() const { return static_cast<int64_t>(positions.size()); }
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
  Values dense(const Values& packed) const {
    Values all(static_cast<size_t>(rows * cols));
    for (size_t k = 0; k < positions.size(); ++k) {
      all[static_cast<size_t>(positions[k])] = packed[k];
    }
    return all;
  }
  std::string text() const {
    return fmt::format("{}x{}_blocks{}x{}_kept{}", rows, cols, height, width, kept());
  }
};
using BlockPatternPointer = std::shared_ptr<const BlockPattern>;

/// Options of a product's call.
struct BlockCall {
  int64_t tokens = 1;
  DType in = kFp32, out = kFp32;
  Activation activation = Activation::none;
  bool extra = false;  ///< forward: bias and activated; transposed: preactivation
  bool accumulate = false;
  int64_t margin = 0;  ///< columns before those of activations, which are part of wider rows
  std::string text() const {
    return fmt::format("{}tokens_{}_{}_{}_extra{:d}_acc{:d}_margin{}", tokens, kernels::text(in),
                       kernels::text(out), name_of(activation), extra, accumulate, margin);
  }
};

/// Strided rows are padded to multiples of the margin: with margins of 8, every row in 16 bits is
/// aligned to 16 bytes, for any width of the matrix.
inline Shape block_activations(const BlockCall& call, int64_t cols) {
  const int64_t margin = call.margin;
  return {call.tokens, margin == 0 ? cols : (cols + 3 * margin - 1) / margin * margin};
}
inline Tensor block_part(const BlockCall& call, const Tensor& t, int64_t cols) {
  return call.margin == 0 ? t : t.column_range(call.margin, cols);
}
/// Extracts the matrix from an operand with margins, and the inverse.
inline Values block_part(const BlockCall& call, const Values& whole, int64_t cols) {
  const int64_t stride = block_activations(call, cols).cols();
  Values part;
  for (int64_t row = 0; row < call.tokens; ++row) {
    const auto from = whole.begin() + row * stride + call.margin;
    part.insert(part.end(), from, from + cols);
  }
  return part;
}
inline void set_block_part(const BlockCall& call, const Values& part, Values& whole, int64_t cols) {
  const int64_t stride = block_activations(call, cols).cols();
  for (int64_t row = 0; row < call.tokens; ++row) {
    std::copy_n(part.begin() + row * cols, cols, whole.begin() + row * stride + call.margin);
  }
}

/// Calls must not change the margins of outputs, so strided outputs are inputs too.
inline Operand block_result(const BlockCall& call, DType dtype, const Shape& shape,
                            Tolerance tolerance) {
  Operand made = in_out_if(call.accumulate || call.margin > 0, dtype, shape, tolerance);
  made.nan_at = call.margin;
  made.input = call.accumulate;
  return made;
}

inline Operand block_input(const BlockCall& call, DType dtype, int64_t cols, int64_t nan_at) {
  Operand made = input(dtype, block_activations(call, cols));
  made.nan_at = nan_at + call.margin;
  return made;
}

/// A column (row) of W that has a kept element.
inline int64_t kept_column(const BlockPattern& w) {
  return w.positions.empty() ? 0 : w.positions[0] % w.cols;
}
inline int64_t kept_row(const BlockPattern& w) {
  return w.positions.empty() ? 0 : w.positions[0] / w.cols;
}

inline Tolerance block_tolerance(int64_t terms) {
  return {1e-6 + 6e-8 * static_cast<double>(terms), 1e-5};
}

inline Case block_spmm_case(const BlockPatternPointer& w, const BlockCall& call) {
  Case made;
  made.name = fmt::format("block_spmm_{}_{}", w->text(), call.text());
  const Shape result = block_activations(call, w->rows);
  const Tolerance tolerance = block_tolerance(w->cols);
  made.operands = {block_input(call, call.in, w->cols, kept_column(*w)),
                   input(call.in, {w->kept()}), block_result(call, call.out, result, tolerance)};
  if (call.extra) {
    made.operands.push_back(input(kFp32, {w->rows}));
    made.operands.push_back(block_result({.tokens = call.tokens, .margin = call.margin}, call.in,
                                         result, of_stored(call.out, tolerance)));
  }
  made.run = [w, call](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.block_spmm(stream,
                       {.weight = w->view(stream, t[1]),
                        .x = block_part(call, t[0], w->cols),
                        .y = block_part(call, t[2], w->rows),
                        .bias = call.extra ? t[3] : Tensor{},
                        .activation = call.activation,
                        .activated = call.extra ? block_part(call, t[4], w->rows) : Tensor{},
                        .accumulate = call.accumulate});
  };
  made.reference = [w, call](std::vector<Values>& v) {
    Values y = block_part(call, v[2], w->rows);
    reference::gemm({call.tokens, w->rows, w->cols, false, true, call.accumulate},
                    block_part(call, v[0], w->cols), w->dense(v[1]), call.extra ? v[3] : Values{},
                    y);
    set_block_part(call, y, v[2], w->rows);
    if (call.extra) {
      for (double& value : y) {
        value = reference::activation(call.activation, rounded(call.out, value));
      }
      set_block_part(call, y, v[4], w->rows);
    }
  };
  made.passes_nan = w->kept() > 0;
  return made;
}

inline Case block_spmm_transposed_case(const BlockPatternPointer& w, const BlockCall& call) {
  Case made;
  made.name = fmt::format("block_spmm_transposed_{}_{}", w->text(), call.text());
  const Shape result = block_activations(call, w->cols);
  made.operands = {block_input(call, call.in, w->rows, kept_row(*w)), input(call.in, {w->kept()}),
                   block_result(call, call.out, result, block_tolerance(w->rows))};
  if (call.extra) {
    made.operands.push_back(block_input(call, call.in, w->cols, 0));
  }
  made.run = [w, call](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.block_spmm_transposed(
        stream, {.weight = w->view(stream, t[1]),
                 .dy = block_part(call, t[0], w->rows),
                 .dx = block_part(call, t[2], w->cols),
                 .activation = call.activation,
                 .preactivation = call.extra ? block_part(call, t[3], w->cols) : Tensor{},
                 .accumulate = call.accumulate});
  };
  made.reference = [w, call](std::vector<Values>& v) {
    const Values old = block_part(call, v[2], w->cols);
    Values dx(old.size());
    reference::gemm({call.tokens, w->cols, w->rows, false, false, false},
                    block_part(call, v[0], w->rows), w->dense(v[1]), {}, dx);
    const Values before = call.extra ? block_part(call, v[3], w->cols) : Values{};
    for (size_t i = 0; i < dx.size(); ++i) {
      dx[i] *= call.extra ? reference::activation_slope(call.activation, before[i]) : 1;
      dx[i] += call.accumulate ? old[i] : 0;
    }
    set_block_part(call, dx, v[2], w->cols);
  };
  // A NaN preactivation reaches the result only if the slope depends on it: the slope of `none` is
  // 1 everywhere.
  made.passes_nan = w->kept() > 0 && (!call.extra || call.activation != Activation::none);
  return made;
}

inline Case block_sddmm_case(const BlockPatternPointer& w, const BlockCall& call) {
  Case made;
  made.name = fmt::format("block_sddmm_{}_{}", w->text(), call.text());
  const Tolerance tolerance = block_tolerance(call.tokens);
  made.operands = {block_input(call, call.in, w->rows, kept_row(*w)),
                   block_input(call, call.in, w->cols, kept_column(*w)),
                   in_out_if(call.accumulate, call.out, {w->kept()}, tolerance)};
  made.run = [w, call](const Kernels& kernels, Stream& stream, const Tensors& t) {
    kernels.block_sddmm(stream, {.weight = w->view(stream, t[2]),
                                 .dy = block_part(call, t[0], w->rows),
                                 .x = block_part(call, t[1], w->cols),
                                 .accumulate = call.accumulate});
  };
  made.reference = [w, call](std::vector<Values>& v) {
    Values all(static_cast<size_t>(w->rows * w->cols));
    reference::gemm({w->rows, w->cols, call.tokens, true, false, false},
                    block_part(call, v[0], w->rows), block_part(call, v[1], w->cols), {}, all);
    for (size_t k = 0; k < w->positions.size(); ++k) {
      v[2][k] = all[static_cast<size_t>(w->positions[k])] + (call.accumulate ? v[2][k] : 0);
    }
  };
  made.passes_nan = w->kept() > 0;
  return made;
}

/// All three products with one pattern. The call's flags follow `variant`, so that few cases cover
/// many combinations.
inline void add_block_verbs(Cases& cases, const BlockPatternPointer& w, int64_t tokens,
                            int variant) {
  const Activation functions[] = {Activation::gelu, Activation::none, Activation::relu};
  const std::pair<DType, DType> types[] = {
      {kFp32, kFp32}, {kBf16, kBf16}, {kBf16, kFp32}, {kFp16, variant % 3 == 0 ? kFp32 : kFp16}};
  for (const auto& [in, out] : types) {
    const BlockCall call{.tokens = tokens,
                         .in = in,
                         .out = out,
                         .activation = functions[variant % 3],
                         .extra = variant % 2 == 0,
                         .accumulate = variant % 4 < 2,
                         .margin = variant % 8 < 4 ? 3 : 0};
    cases.push_back(block_spmm_case(w, call));
    cases.push_back(block_spmm_transposed_case(w, call));
    cases.push_back(block_sddmm_case(w, call));
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
    const BlockCall call{.tokens = tokens,
                         .in = half,
                         .out = variant % 2 == 0 ? half : kFp32,
                         .activation = functions[variant % 3],
                         .extra = variant % 4 < 2,
                         .accumulate = variant % 8 < 4,
                         .margin = 8};
    cases.push_back(block_spmm_case(w, call));
    cases.push_back(block_spmm_transposed_case(w, call));
    cases.push_back(block_sddmm_case(w, call));
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
