#include "src/kernels/operations/norm.h"

#include "src/kernels/operations/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {

void verify(const LayerNormArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  is_fp32("x", args.x);
  is_any("y", args.y);
  is_beside("weight", args.weight, args.y);
  is_matrix("x", args.x, rows, cols);
  is_matrix("y", args.y, rows, cols);
  is_flat("weight", args.weight, cols);
  is_flat("bias", args.bias, cols);
  require(args.bias.dtype == args.weight.dtype, "bias must have the type of weight",
          name_of(args.bias.dtype), name_of(args.weight.dtype));
  is_fp32_vector("mean", args.mean, rows);
  is_fp32_vector("rstd", args.rstd, rows);
}

DryCount cost(const LayerNormArgs& args) {
  return {8 * elements(args.x),
          traffic(args.x, args.y, args.weight, args.bias, args.mean, args.rstd)};
}

void verify(const LayerNormBackwardArgs& args) {
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
    require(args.rounded.dtype == args.dy.dtype, "dx is rounded to the type of dy",
            name_of(args.rounded.dtype), name_of(args.dy.dtype));
  }
  is_matrix("dx", args.dx, rows, cols);
  is_flat("weight", args.weight, cols);
  is_fp32_vector("mean", args.mean, rows);
  is_fp32_vector("rstd", args.rstd, rows);
  is_any_vector("dweight", args.dweight, cols);
  is_any_vector("dbias", args.dbias, cols);
}

DryCount cost(const LayerNormBackwardArgs& args) {
  return {16 * elements(args.x), traffic(args.dy, args.x, args.dx, args.dx, args.weight, args.mean,
                                         args.rstd, args.dweight, args.dbias, args.rounded)};
}

void verify(const RmsNormArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  is_fp32("x", args.x);
  is_any("y", args.y);
  is_beside("weight", args.weight, args.y);
  is_matrix("x", args.x, rows, cols);
  is_matrix("y", args.y, rows, cols);
  is_flat("weight", args.weight, cols);
  is_fp32_vector("rstd", args.rstd, rows);
}

DryCount cost(const RmsNormArgs& args) {
  return {4 * elements(args.x), traffic(args.x, args.y, args.weight, args.rstd)};
}

void verify(const RmsNormBackwardArgs& args) {
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
    require(args.rounded.dtype == args.dy.dtype, "dx is rounded to the type of dy",
            name_of(args.rounded.dtype), name_of(args.dy.dtype));
  }
  is_matrix("dx", args.dx, rows, cols);
  is_flat("weight", args.weight, cols);
  is_fp32_vector("rstd", args.rstd, rows);
  is_any_vector("dweight", args.dweight, cols);
}

DryCount cost(const RmsNormBackwardArgs& args) {
  return {11 * elements(args.x), traffic(args.dy, args.x, args.dx, args.dx, args.weight, args.rstd,
                                         args.dweight, args.rounded)};
}

}  // namespace espalier::kernels
