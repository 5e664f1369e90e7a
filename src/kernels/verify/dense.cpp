#include "src/kernels/operations/dense.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {

void verify(const GemmArgs& args) {
  const Tensor& a = args.a;
  const Tensor& b = args.b;
  const Tensor& c = args.c;
  const int64_t m = args.transpose_a ? a.cols() : a.rows();
  const int64_t k = args.transpose_a ? a.rows() : a.cols();
  const int64_t n = args.transpose_b ? b.rows() : b.cols();
  is_any("a", a);
  is_any("c", c);
  require(a.dtype == b.dtype, "a and b must have one type", name_of(a.dtype), name_of(b.dtype));
  require(c.dtype == a.dtype || c.dtype == DType::fp32, "c must be fp32 or of the inputs' type",
          name_of(c.dtype));
  require((args.transpose_b ? b.cols() : b.rows()) == k, "inner extents must match", a.shape.text(),
          b.shape.text());
  is_matrix("c", c, m, n);
  if (args.addend) {
    is_matrix("addend", args.addend, m, n);
    require(args.addend.dtype == c.dtype && args.addend.stride == c.stride,
            "an addend lies as c does", name_of(args.addend.dtype), args.addend.stride);
    require(!args.accumulate, "c is added to, or an addend");
  }
  if (args.bias) {
    is_fp32_vector("bias", args.bias, n);
  }
  if (args.activated) {
    verify(ActivationArgs{.kind = args.activation, .x = c, .y = args.activated});
  }
  if (args.preactivation) {
    verify(
        ActivationBackwardArgs{.kind = args.activation, .dy = c, .x = args.preactivation, .dx = c});
    require(!args.accumulate && !args.addend && !args.bias && !args.activated && !args.row_sums,
            "the slope multiplies the product alone");
  }
  if (args.row_sums) {
    require(args.transpose_a, "row sums are those of a transposed a");
    is_any_vector("row_sums", args.row_sums, m);
  }
}

/// Epilogues count as separate passes.
DryCount cost(const GemmArgs& args) {
  const double inner = static_cast<double>(args.transpose_a ? args.a.rows() : args.a.cols());
  DryCount all{2 * inner * elements(args.c),
               traffic(args.a, args.b, args.c, args.bias, args.addend) +
                   (args.accumulate ? traffic(args.c) : 0)};
  if (args.activated) {
    all += cost(ActivationArgs{.kind = args.activation, .x = args.c, .y = args.activated});
  }
  if (args.preactivation) {
    all += cost(ActivationBackwardArgs{
        .kind = args.activation, .dy = args.c, .x = args.preactivation, .dx = args.c});
  }
  if (args.row_sums) {
    all +=
        cost(ColumnSumArgs{.x = args.a, .out = args.row_sums, .accumulate = args.accumulate_sums});
  }
  return all;
}

void verify(const ColumnSumArgs& args) {
  is_any("x", args.x);
  is_matrix("x", args.x, args.x.rows(), args.x.cols());
  is_any_vector("out", args.out, args.x.cols());
  is_beside("out", args.out, args.x);
}

DryCount cost(const ColumnSumArgs& args) { return {elements(args.x), traffic(args.x, args.out)}; }

}  // namespace espalier::kernels
