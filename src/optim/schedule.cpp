#include "src/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/core/error.h"

namespace espalier::optim {

double learning_rate(const io::OptimizerConfig& config, int64_t step, int64_t steps) {
  if (step < config.warmup_steps) {
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  }
  if (config.schedule == "constant") {
    return config.lr;
  }
  const auto rest = static_cast<double>(std::max<int64_t>(steps - config.warmup_steps, 1));
  const double done = std::clamp(static_cast<double>(step - config.warmup_steps) / rest, 0.0, 1.0);
  if (config.schedule == "linear") {
    return config.lr + (config.min_lr - config.lr) * done;
  }
  require(config.schedule == "cosine", "the config allows known schedules only", config.schedule);
  return config.min_lr +
         (config.lr - config.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace espalier::optim
