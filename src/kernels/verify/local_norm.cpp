#include "src/kernels/operations/local_norm.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

void is_local_norm(const LocalNorm& norm) {
  require(norm.extent > 0 && norm.extent <= LocalNorm::kLargest && norm.extent % 2 == 1,
          "the extent is odd and within the limit", norm.extent, LocalNorm::kLargest);
  require(norm.k > 0 && norm.alpha >= 0, "scales are positive", norm.k, norm.alpha);
}

void is_like(const char* name, const Tensor& t, const Tensor& x) {
  is_any("x", x);
  is_same_type(name, t, x);
  is_matrix(name, t, x.rows(), x.cols());
  is_flat(name, t, x.count());
}

/// Flops of the scale of one element, and of its power.
double scale_flops(const LocalNorm& norm) { return static_cast<double>(norm.extent) + 7; }

}  // namespace

void verify(const LocalNormArgs& args) {
  is_local_norm(args.norm);
  is_like("x", args.x, args.x);
  is_like("y", args.y, args.x);
}

DryCount cost(const LocalNormArgs& args) {
  return {(scale_flops(args.norm) + 1) * elements(args.x), traffic(args.x, args.y)};
}

void verify(const LocalNormBackwardArgs& args) {
  is_local_norm(args.norm);
  is_like("x", args.x, args.x);
  is_like("dy", args.dy, args.x);
  is_like("dx", args.dx, args.x);
}

DryCount cost(const LocalNormBackwardArgs& args) {
  return {(scale_flops(args.norm) + static_cast<double>(args.norm.extent) + 7) * elements(args.x),
          traffic(args.dy, args.x, args.dx)};
}

}  // namespace espalier::kernels
