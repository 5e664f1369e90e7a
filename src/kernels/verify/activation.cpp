#include "src/kernels/operations/activation.h"

#include "src/kernels/verify/cost.h"
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

void verify(const GatedActivationArgs& args) {
  const int64_t rows = args.gate.rows();
  const int64_t cols = args.gate.cols();
  is_any("gate", args.gate);
  is_matrix("gate", args.gate, rows, cols);
  is_matrix_like(args.gate, "up", args.up);
  is_matrix_like(args.gate, "y", args.y);
}

DryCount cost(const GatedActivationArgs& args) {
  return {(flops_of(args.kind) + 1) * elements(args.gate), traffic(args.gate, args.up, args.y)};
}

void verify(const GatedActivationBackwardArgs& args) {
  verify(GatedActivationArgs{.kind = args.kind, .gate = args.gate, .up = args.up, .y = args.dy});
  is_matrix_like(args.gate, "dgate", args.dgate);
  is_matrix_like(args.gate, "dup", args.dup);
  require(args.dgate.data != args.dup.data || args.gate.count() == 0,
          "dgate and dup are different tensors");
}

DryCount cost(const GatedActivationBackwardArgs& args) {
  return {(1.5 * flops_of(args.kind) + 3) * elements(args.gate),
          traffic(args.dy, args.gate, args.up, args.dgate, args.dup)};
}

}  // namespace espalier::kernels
