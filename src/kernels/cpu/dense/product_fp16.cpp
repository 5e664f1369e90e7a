#include "src/kernels/cpu/dense/product_fp16.h"

#include <algorithm>

#include "src/kernels/cpu/dense/product.h"
#include "src/kernels/cpu/support.h"

namespace espalier::kernels::cpu {
namespace {

constexpr int64_t kRows = 256, kColumns = 1024, kDepth = 512;  ///< of a panel

/// Range [first, first + n) of one extent.
struct Cut {
  int64_t first, n;
};
Cut cut(int64_t first, int64_t each, int64_t extent) {
  return {first, std::min(each, extent - first)};
}

/// Rows and columns of `matrix`, or of its transpose if `transposed`.
HalfPanel panel_of(const Tensor& matrix, bool transposed, Cut rows, Cut cols, float* wide) {
  if (transposed) {
    std::swap(rows, cols);
  }
  return {.half = static_cast<fp16*>(matrix.data) + rows.first * matrix.stride + cols.first,
          .stride = matrix.stride,
          .rows = rows.n,
          .cols = cols.n,
          .wide = wide};
}

Tensor widened(const HalfPanel& panel) {
  return Tensor(panel.wide, DType::fp32, {panel.rows, panel.cols});
}

int64_t depth_of(const GemmArgs& args) { return args.transpose_a ? args.a.rows() : args.a.cols(); }

/// Extents of the largest panels, and their numbers of elements.
struct Panels {
  int64_t rows, cols, depth;
  explicit Panels(const GemmArgs& args)
      : rows(std::min(kRows, args.c.rows())),
        cols(std::min(kColumns, args.c.cols())),
        depth(std::min(kDepth, depth_of(args))) {}
  int64_t a() const { return rows * depth; }
  int64_t b() const { return depth * cols; }
  int64_t sums() const { return rows * cols; }
};

struct Product {
  Stream& stream;
  const GemmArgs& args;
  const HalfLoops& loops;
  float *a, *b, *sums;  ///< sums: for a result in fp16

  /// Computes these elements of c.
  void compute(Cut rows, Cut cols) const {
    const bool wide = args.c.dtype == DType::fp32;
    const bool dry = stream.arena().dry();
    const HalfPanel result = panel_of(args.c, false, rows, cols, sums);
    const Tensor c = wide ? args.c.row_range(rows.first, rows.n).column_range(cols.first, cols.n)
                          : widened(result);
    const int64_t depth = depth_of(args);
    // With depth 0, c still gets its bias.
    for (int64_t k = 0; k == 0 || k < depth; k += kDepth) {
      const Cut inner = cut(k, kDepth, depth);
      const HalfPanel left = panel_of(args.a, args.transpose_a, rows, inner, a);
      const HalfPanel right = panel_of(args.b, args.transpose_b, inner, cols, b);
      if (!dry) {
        loops.widen(stream.threads(), left);
        loops.widen(stream.threads(), right);
      }
      const GemmArgs part{
          .a = widened(left),
          .b = widened(right),
          .c = c,
          .bias = args.bias && k == 0 ? args.bias.elements(cols.first, cols.n) : Tensor{},
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .accumulate = k > 0 || (wide && args.accumulate)};
      product(stream, part, workspace(stream, product_scratch(stream, part)));
    }
    if (!wide && !dry) {
      loops.narrow(stream.threads(), result, args.accumulate);
    }
  }
};

}  // namespace

void product_fp16(Stream& stream, const GemmArgs& args, const HalfLoops& loops) {
  const Panels panels(args);
  const Buffer memory =
      stream.arena().allocate(Memory::scratch, "panels of a product in fp32", DType::fp32,
                              Shape{panels.a() + panels.b() + panels.sums()});
  auto* const a = static_cast<float*>(memory.tensor().data);
  const Product whole{.stream = stream,
                      .args = args,
                      .loops = loops,
                      .a = a,
                      .b = a + panels.a(),
                      .sums = a + panels.a() + panels.b()};
  for (int64_t row = 0; row < args.c.rows(); row += kRows) {
    for (int64_t col = 0; col < args.c.cols(); col += kColumns) {
      whole.compute(cut(row, kRows, args.c.rows()), cut(col, kColumns, args.c.cols()));
    }
  }
}

}  // namespace espalier::kernels::cpu
