#include <cmath>

#include "src/kernels/cuda/optimizer/update.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

/// One AdamW step with its constants folded; see kernels.h for the formula.
struct AdamW {
  float scale, beta1, beta2, epsilon;
  float keep;  ///< 1 - lr weight_decay
  float step;  ///< lr / bias1
  float root;  ///< 1 / sqrt(bias2)

  __device__ __forceinline__ float next(float w, float gradient, float& moment1,
                                        float& moment2) const {
    const float g = gradient * scale;
    moment1 = beta1 * moment1 + (1.0F - beta1) * g;
    moment2 = beta2 * moment2 + (1.0F - beta2) * (g * g);
    return w * keep - quick_quotient(step * moment1, quick_root(moment2) * root + epsilon);
  }
};

AdamW rule_of(const AdamWArgs& args) {
  return {.scale = args.scale,
          .beta1 = args.beta1,
          .beta2 = args.beta2,
          .epsilon = args.epsilon,
          .keep = 1.0F - args.lr * args.weight_decay,
          .step = args.lr / args.bias1,
          .root = 1.0F / std::sqrt(args.bias2)};
}

}  // namespace

void adamw(Stream& stream, Each<AdamWArgs> all) {
  step_each("adamw", stream, all, rule_of,
            [](const AdamWArgs& args) { return moment_of(args.moment2, args.scale2); });
}

}  // namespace espalier::kernels::ESPALIER_GPU
