#include "src/kernels/operations/activation.h"

#include "src/kernels/operations/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {

void verify(const ActivationArgs& args) { is_elementwise(args.x, "y", args.y); }

DryCount cost(const ActivationArgs& args) {
  return {flops_of(args.kind) * elements(args.x), traffic(args.x, args.y)};
}

void verify(const ActivationBackwardArgs& args) {
  is_elementwise(args.x, "dy", args.dy);
  is_elementwise(args.x, "dx", args.dx);
}

DryCount cost(const ActivationBackwardArgs& args) {
  return {1.5 * flops_of(args.kind) * elements(args.x), traffic(args.dy, args.x, args.dx)};
}

}  // namespace espalier::kernels
