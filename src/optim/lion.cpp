// Lion: Chen et al., 2023, arXiv 2302.06675, algorithm 2. One moment; every element moves by lr.
// Formula: kernels::UpdateRule. lr is 3 to 10 times less than AdamW's, weight decay as much more.
#include "src/optim/registry.h"

namespace espalier::optim {

extern const OptimizerKind kLion;
const OptimizerKind kLion{.name = "lion",
                          .help = "sign of an average of gradients: one moment",
                          .moments = 1,
                          .rate = 5e-4,
                          .image_rate = 1e-4,
                          .scale_free = true,
                          .rule = kernels::UpdateRule::lion,
                          .set = [](const UpdateStep& step, kernels::UpdateArgs& args) {
                            args.beta1 = static_cast<float>(step.config.beta1);
                            args.beta2 = static_cast<float>(step.config.beta2);
                          }};

}  // namespace espalier::optim
