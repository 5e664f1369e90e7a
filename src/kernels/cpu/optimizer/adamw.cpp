#include "src/kernels/cpu/optimizer/update.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// One AdamW step with its constants folded; see kernels.h for the formula.
struct AdamW {
  float scale, beta1, beta2, epsilon;
  float keep;  ///< 1 - lr weight_decay
  float step;  ///< lr / bias1
  float root;  ///< 1 / sqrt(bias2)

  /// The new value of an element; its moments change in place.
  [[gnu::always_inline]] float next(float w, float gradient, float* moment1, float* moment2) const {
    const float g = gradient * scale;
    const float m = beta1 * *moment1 + (1.0F - beta1) * g;
    const float v = beta2 * *moment2 + (1.0F - beta2) * (g * g);
    *moment1 = m;
    *moment2 = v;
    return w * keep - step * m / (__builtin_sqrtf(v) * root + epsilon);
  }
};

}  // namespace

void adamw(Stream& stream, Each<AdamWArgs> all) {
  for (const AdamWArgs& args : all) {
    verify(args);
    const AdamW rule{.scale = args.scale,
                     .beta1 = args.beta1,
                     .beta2 = args.beta2,
                     .epsilon = args.epsilon,
                     .keep = 1.0F - args.lr * args.weight_decay,
                     .step = args.lr / args.bias1,
                     .root = 1.0F / __builtin_sqrtf(args.bias2)};
    step(stream, rule, args, moment_of(args.moment2, args.scale2));
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
