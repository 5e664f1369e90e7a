// AdamW: Loshchilov and Hutter, ICLR 2019, algorithm 2 (decoupled decay, times lr as in PyTorch).
// Formula: kernels::AdamWArgs.
#include <cmath>
#include <vector>

#include "src/optim/registry.h"

namespace espalier::optim {
namespace {

/// 1 - beta^t
double correction(double beta, int64_t t) { return 1 - std::pow(beta, static_cast<double>(t)); }

void update(Stream& stream, const kernels::Kernels& kernels, const UpdateStep& step,
            std::span<const ParameterUpdate> all) {
  const io::OptimizerConfig& config = step.config;
  std::vector<kernels::AdamWArgs> args;
  args.reserve(all.size());
  for (const ParameterUpdate& parameter : all) {
    auto& one = args.emplace_back(common_args<kernels::AdamWArgs>(parameter, step));
    one.moment2 = parameter.moment2;
    one.scale2 = parameter.scale2;
    one.beta1 = static_cast<float>(config.beta1);
    one.beta2 = static_cast<float>(config.beta2);
    one.epsilon = static_cast<float>(config.epsilon);
    one.bias1 = static_cast<float>(correction(config.beta1, step.count));
    one.bias2 = static_cast<float>(correction(config.beta2, step.count));
  }
  kernels.adamw(stream, args);
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
                           .scale_free = true,
                           .update = update,
                           .predict = predict,
                           .has_direction = [](const io::OptimizerConfig&) { return true; }};

}  // namespace espalier::optim
