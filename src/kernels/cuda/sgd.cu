#include "src/kernels/cuda/optimizer.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Sgd {
  float scale, lr, momentum, decay;

  __device__ __forceinline__ float next(float w, float gradient, float& moment1, float&) const {
    moment1 = momentum * moment1 + gradient * scale + decay * w;
    return w - lr * moment1;
  }
};

}  // namespace

void sgd(Stream& stream, Each<SgdArgs> all) {
  for (const SgdArgs& args : all) {
    verify(args);
    const Sgd rule{
        .scale = args.scale, .lr = args.lr, .momentum = args.momentum, .decay = args.weight_decay};
    step("sgd", stream, rule, args, Moment{});
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
