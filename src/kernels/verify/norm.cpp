#include "src/kernels/operations/norm.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {

void verify(const NormArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  is_fp32("x", args.x);
  is_any("y", args.y);
  is_beside("weight", args.weight, args.y);
  is_matrix("x", args.x, rows, cols);
  is_matrix("y", args.y, rows, cols);
  is_flat("weight", args.weight, cols);
  is_fp32_vector("rstd", args.rstd, rows);
  require(args.epsilon > 0, "epsilon must be positive", args.epsilon);
  if (args.bias) {
    is_flat("bias", args.bias, cols);
    is_same_type("bias", args.bias, args.weight);
    is_fp32_vector("mean", args.mean, rows);
  }
}

DryCount cost(const NormArgs& args) {
  return {(args.bias ? 8 : 4) * elements(args.x),
          traffic(args.x, args.y, args.weight, args.bias, args.mean, args.rstd)};
}

void verify(const NormBackwardArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  is_any("dy", args.dy);
  is_beside("weight", args.weight, args.dy);
  is_fp32("x", args.x);
  is_fp32("dx", args.dx);
  is_matrix("dy", args.dy, rows, cols);
  is_matrix("x", args.x, rows, cols);
  if (args.rounded) {
    is_matrix("rounded", args.rounded, rows, cols);
    is_same_type("rounded", args.rounded, args.dy);
  }
  is_matrix("dx", args.dx, rows, cols);
  is_flat("weight", args.weight, cols);
  is_fp32_vector("rstd", args.rstd, rows);
  is_any_vector("dweight", args.dweight, cols);
  if (args.dbias) {
    is_fp32_vector("mean", args.mean, rows);
    is_any_vector("dbias", args.dbias, cols);
  }
}

DryCount cost(const NormBackwardArgs& args) {
  return {(args.dbias ? 16 : 11) * elements(args.x),
          traffic(args.dy, args.x, args.dx, args.dx, args.weight, args.mean, args.rstd,
                  args.dweight, args.dbias, args.rounded)};
}

void verify(const HeadNormArgs& args) {
  const int64_t rows = args.x.rows();
  is_any("x", args.x);
  require(args.heads > 0 && args.x.cols() % args.heads == 0, "heads must divide the columns",
          args.x.shape.text(), args.heads);
  is_matrix("x", args.x, rows, args.x.cols());
  is_matrix_like(args.x, "y", args.y);
  is_beside("weight", args.weight, args.x);
  is_flat("weight", args.weight, args.x.cols() / args.heads);
  is_fp32_vector("rstd", args.rstd, rows * args.heads);
  require(args.epsilon > 0, "epsilon must be positive", args.epsilon);
}

DryCount cost(const HeadNormArgs& args) {
  return {4 * elements(args.x), traffic(args.x, args.y, args.weight, args.rstd)};
}

void verify(const HeadNormBackwardArgs& args) {
  verify(HeadNormArgs{
      .x = args.x, .weight = args.weight, .y = args.dy, .rstd = args.rstd, .heads = args.heads});
  is_matrix_like(args.x, "dx", args.dx);
  is_any_vector("dweight", args.dweight, args.x.cols() / args.heads);
}

DryCount cost(const HeadNormBackwardArgs& args) {
  return {11 * elements(args.x),
          traffic(args.dy, args.x, args.dx, args.weight, args.rstd, args.dweight)};
}

}  // namespace espalier::kernels
