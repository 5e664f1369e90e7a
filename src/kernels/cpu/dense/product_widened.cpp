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

/// One product of panels: `args` multiplies `left` and `right`, widened to args.a and args.b.
struct Part {
  GemmArgs args;
  Tensor left, right, result;
  bool last = false;  ///< of those that add to `result`
};

/// The panels of a product, in memory for the largest of them: a, b and, for a 16-bit result, sums.
class Panels {
 public:
  explicit Panels(const GemmArgs& args)
      : args_(args),
        depth_(depth_of(args)),
        rows_(std::min(kRows, args.c.rows())),
        cols_(std::min(kColumns, args.c.cols())),
        inner_(std::min(kDepth, depth_)) {}

  int64_t bytes() const {
    const int64_t numbers = rows_ * inner_ + inner_ * cols_ + rows_ * cols_;
    return (numbers * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
  }

  /// Calls body(part) for all parts, in order. With depth 0, c still gets its bias.
  template <class Body>
  void for_parts(float* memory, const Body& body) const {
    for (int64_t row = 0; row < args_.c.rows(); row += kRows) {
      for (int64_t col = 0; col < args_.c.cols(); col += kColumns) {
        for (int64_t k = 0; k == 0 || k < depth_; k += kDepth) {
          body(part(memory, cut(row, kRows, args_.c.rows()), cut(col, kColumns, args_.c.cols()),
                    cut(k, kDepth, depth_)));
        }
      }
    }
  }

 private:
  Part part(float* memory, Cut rows, Cut cols, Cut inner) const {
    const bool wide = args_.c.dtype == DType::fp32;
    const bool first = inner.first == 0;
    Part made{.left = panel_of(args_.a, args_.transpose_a, rows, inner),
              .right = panel_of(args_.b, args_.transpose_b, inner, cols),
              .result = panel_of(args_.c, false, rows, cols),
              .last = inner.first + inner.n == depth_};
    float* const b = memory + rows_ * inner_;
    made.args = {.a = wide_for(made.left, memory),
                 .b = wide_for(made.right, b),
                 .c = wide ? made.result : wide_for(made.result, b + inner_ * cols_),
                 .bias = args_.bias && first ? args_.bias.elements(cols.first, cols.n) : Tensor{},
                 .transpose_a = args_.transpose_a,
                 .transpose_b = args_.transpose_b,
                 .accumulate = !first || (wide && args_.accumulate)};
    return made;
  }

  const GemmArgs& args_;
  int64_t depth_, rows_, cols_, inner_;
};

}  // namespace

void product_widened(Stream& stream, const GemmArgs& args, const WideningLoops& loops) {
  require(
      args.a.dtype == args.b.dtype && (args.c.dtype == args.a.dtype || args.c.dtype == DType::fp32),
      "a product has one 16-bit type", name_of(args.a.dtype), name_of(args.b.dtype),
      name_of(args.c.dtype));
  const Panels panels(args);
  size_t scratch = 0;
  auto* const nowhere = reinterpret_cast<float*>(alignof(float));  // shapes decide the scratch
  panels.for_parts(nowhere, [&](const Part& part) {
    scratch = std::max(scratch, product_scratch(stream, part.args));
  });
  // One request: a plan counts the workspace.
  const auto bytes = static_cast<size_t>(panels.bytes());
  std::byte* const memory = workspace(stream, bytes + scratch);
  if (is_dry(stream)) {
    return;
  }
  const int threads = stream.threads();
  panels.for_parts(reinterpret_cast<float*>(memory), [&](const Part& part) {
    loops.widen(threads, part.left, part.args.a);
    loops.widen(threads, part.right, part.args.b);
    product(stream, part.args, memory + bytes);
    if (part.last && part.args.c.data != part.result.data) {
      loops.narrow(threads, part.args.c, part.result, args.accumulate);
    }
  });
}

}  // namespace espalier::kernels::cpu
