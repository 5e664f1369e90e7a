// SGD with momentum, as PyTorch defines it. Formula: kernels::SgdArgs.
#include <vector>

#include "src/optim/registry.h"

namespace espalier::optim {
namespace {

void update(Stream& stream, const kernels::Kernels& kernels, const UpdateStep& step,
            std::span<const ParameterUpdate> all) {
  std::vector<kernels::SgdArgs> args;
  args.reserve(all.size());
  for (const ParameterUpdate& parameter : all) {
    auto& one = args.emplace_back(common_args<kernels::SgdArgs>(parameter, step));
    one.momentum = static_cast<float>(step.config.momentum);
  }
  kernels.sgd(stream, args);
}

}  // namespace

extern const OptimizerKind kSgd;
const OptimizerKind kSgd{
    .name = "sgd",
    .help = "stochastic gradient descent with momentum",
    .moments = 1,
    .update = update,
    .predict = [](const io::OptimizerConfig&, int64_t, double lr) -> kernels::PredictArgs::Term {
      return {.step = static_cast<float>(lr)};
    },
    .has_direction = [](const io::OptimizerConfig& config) { return config.momentum > 0; }};

}  // namespace espalier::optim
