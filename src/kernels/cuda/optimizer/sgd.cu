#include "src/kernels/cuda/optimizer/update.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Sgd {
  float scale, lr, momentum, decay;

  __device__ __forceinline__ float next(float w, float gradient, float& moment1, float&) const {
    moment1 = momentum * moment1 + gradient * scale + decay * w;
    return w - lr * moment1;
  }
};

Sgd rule_of(const SgdArgs& args) {
  return {
      .scale = args.scale, .lr = args.lr, .momentum = args.momentum, .decay = args.weight_decay};
}

}  // namespace

void sgd(Stream& stream, Each<SgdArgs> all) {
  step_each("sgd", stream, all, rule_of, [](const SgdArgs&) { return Moment{}; });
}

}  // namespace espalier::kernels::ESPALIER_GPU
