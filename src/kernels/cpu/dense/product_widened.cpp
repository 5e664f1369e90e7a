#include "src/kernels/cpu/dense/product_widened.h"

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
Tensor panel_of(const Tensor& matrix, bool transposed, Cut rows, Cut cols) {
  if (transposed) {
    std::swap(rows, cols);
  }
  return matrix.row_range(rows.first, rows.n).column_range(cols.first, cols.n);
}

/// The fp32 matrix at `memory` for the numbers of `half`.
Tensor wide_for(const Tensor& half, float* memory) {
  return Tensor(memory, DType::fp32, {half.rows(), half.cols()});
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
  const WideningLoops& loops;
  float *a, *b, *sums;  ///< sums: for a 16-bit result

  /// Computes these elements of c.
  void compute(Cut rows, Cut cols) const {
    const bool wide = args.c.dtype == DType::fp32;
    const bool dry = stream.arena().dry();
    const Tensor result = panel_of(args.c, false, rows, cols);
    const Tensor c = wide ? result : wide_for(result, sums);
    const int64_t depth = depth_of(args);
    // With depth 0, c still gets its bias.
    for (int64_t k = 0; k == 0 || k < depth; k += kDepth) {
      const Cut inner = cut(k, kDepth, depth);
      const Tensor left = panel_of(args.a, args.transpose_a, rows, inner);
      const Tensor right = panel_of(args.b, args.transpose_b, inner, cols);
      const GemmArgs part{
          .a = wide_for(left, a),
          .b = wide_for(right, b),
          .c = c,
          .bias = args.bias && k == 0 ? args.bias.elements(cols.first, cols.n) : Tensor{},
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .accumulate = k > 0 || (wide && args.accumulate)};
      if (!dry) {
        loops.widen(stream.threads(), left, part.a);
        loops.widen(stream.threads(), right, part.b);
      }
      product(stream, part, workspace(stream, product_scratch(stream, part)));
    }
    if (!wide && !dry) {
      loops.narrow(stream.threads(), c, result, args.accumulate);
    }
  }
};

}  // namespace

void product_widened(Stream& stream, const GemmArgs& args, const WideningLoops& loops) {
  require(
      args.a.dtype == args.b.dtype && (args.c.dtype == args.a.dtype || args.c.dtype == DType::fp32),
      "a product has one 16-bit type", name_of(args.a.dtype), name_of(args.b.dtype),
      name_of(args.c.dtype));
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
