#include "src/kernels/operations/activation.h"

#include "src/kernels/operations/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {

void verify(const ActivationArgs& args) {
  is_any("x", args.x);
  require(args.x.dtype == args.y.dtype, "x and y must have one type", name_of(args.x.dtype),
          name_of(args.y.dtype));
  is_flat("x", args.x, args.x.count());
  is_flat("y", args.y, args.x.count());
}

DryCount cost(const ActivationArgs& args) {
  return {flops_of(args.kind) * elements(args.x), traffic(args.x, args.y)};
}

void verify(const ActivationBackwardArgs& args) {
  is_any("x", args.x);
  require(args.x.dtype == args.dy.dtype && args.x.dtype == args.dx.dtype,
          "dy, x and dx must have one type", name_of(args.dy.dtype), name_of(args.x.dtype),
          name_of(args.dx.dtype));
  is_flat("dy", args.dy, args.x.count());
  is_flat("x", args.x, args.x.count());
  is_flat("dx", args.dx, args.x.count());
}

DryCount cost(const ActivationBackwardArgs& args) {
  return {1.5 * flops_of(args.kind) * elements(args.x), traffic(args.dy, args.x, args.dx)};
}

}  // namespace espalier::kernels
