// AdamW: Loshchilov and Hutter, ICLR 2019, algorithm 2 (decoupled decay, times lr as in PyTorch).
// Formula: kernels::UpdateRule.
#include <cmath>

#include "src/optim/registry.h"

namespace espalier::optim {
namespace {

/// 1 - beta^t
double correction(double beta, int64_t t) { return 1 - std::pow(beta, static_cast<double>(t)); }

void set(const UpdateStep& step, kernels::UpdateArgs& args) {
  const io::OptimizerConfig& config = step.config;
  args.beta1 = static_cast<float>(config.beta1);
  args.beta2 = static_cast<float>(config.beta2);
  args.epsilon = static_cast<float>(config.epsilon);
  args.bias_correction1 = static_cast<float>(correction(config.beta1, step.count));
  args.bias_correction2 = static_cast<float>(correction(config.beta2, step.count));
}

kernels::PredictArgs::Term predict(const io::OptimizerConfig& config, int64_t done, double lr) {
  return {.step = static_cast<float>(lr / correction(config.beta1, done)),
          .root = static_cast<float>(1 / std::sqrt(correction(config.beta2, done)))};
}

}  // namespace

extern const OptimizerKind kAdamW;
const OptimizerKind kAdamW{.name = "adamw",
                           .help = "Adam with decoupled weight decay",
                           .moments = 2,
                           .rate = 4e-3,
                           .image_rate = 1e-3,
                           .scale_free = true,
                           .rule = kernels::UpdateRule::adamw,
                           .set = set,
                           .predict = predict,
                           .has_direction = [](const io::OptimizerConfig&) { return true; }};

}  // namespace espalier::optim
