#include "src/kernels/cpu/optimizer/update.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

struct Sgd {
  float scale, lr, momentum, decay;

  [[gnu::always_inline]] float next(float w, float gradient, float* moment1,
                                    float* /*moment2*/) const {
    const float m = momentum * *moment1 + gradient * scale + decay * w;
    *moment1 = m;
    return w - lr * m;
  }
};

}  // namespace

void sgd(Stream& stream, Each<SgdArgs> all) {
  for (const SgdArgs& args : all) {
    verify(args);
    const Sgd rule{
        .scale = args.scale, .lr = args.lr, .momentum = args.momentum, .decay = args.weight_decay};
    step(stream, rule, args, Moment{});
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
