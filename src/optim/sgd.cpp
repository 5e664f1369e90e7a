// SGD with momentum or Nesterov's momentum, as PyTorch defines them. Formulas: kernels::UpdateRule.
// The prediction is the same for both: while the gradient stays, m = g / (1 - momentum), and
// Nesterov's direction g + momentum m is m, too.
#include "src/optim/registry.h"

namespace espalier::optim {
extern const OptimizerKind kSgd;
const OptimizerKind kSgd{
    .name = "sgd",
    .help = "stochastic gradient descent with momentum",
    .moments = 1,
    .rate = 1e-3,
    .image_rate = 0.02,
    .rule = kernels::UpdateRule::sgd,
    .set =
        [](const UpdateStep& step, kernels::UpdateArgs& args) {
          args.beta1 = static_cast<float>(step.config.momentum);
          args.rule =
              step.config.nesterov ? kernels::UpdateRule::nesterov : kernels::UpdateRule::sgd;
        },
    .predict = [](const io::OptimizerConfig&, int64_t, double lr) -> kernels::PredictArgs::Term {
      return {.step = static_cast<float>(lr)};
    },
    .has_direction = [](const io::OptimizerConfig& config) { return config.momentum > 0; }};

}  // namespace espalier::optim
