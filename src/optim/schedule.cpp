#include "src/optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "src/core/error.h"
#include "src/optim/parametrization.h"
#include "src/optim/registry.h"

namespace espalier::optim {
namespace {

using io::OptimizerConfig;

constexpr LrSchedule kCosine{.name = "cosine",
                             .help = "half a cosine from lr to min_lr",
                             .to_min_lr = true,
                             .rate = [](const OptimizerConfig& config, int64_t, double t) {
                               return config.min_lr + (config.lr - config.min_lr) * 0.5 *
                                                          (1 + std::cos(std::numbers::pi * t));
                             }};
constexpr LrSchedule kLinear{.name = "linear",
                             .help = "a line from lr to min_lr",
                             .to_min_lr = true,
                             .rate = [](const OptimizerConfig& config, int64_t, double t) {
                               return config.lr + (config.min_lr - config.lr) * t;
                             }};
constexpr LrSchedule kPolynomial{
    .name = "polynomial",
    .help = "min_lr + (lr - min_lr) (1 - t)^POWER, t: share of the steps after warm-up",
    .to_min_lr = true,
    .rate = [](const OptimizerConfig& config, int64_t, double t) {
      return config.min_lr + (config.lr - config.min_lr) * std::pow(1 - t, config.power);
    }};
constexpr LrSchedule kStep{
    .name = "step",
    .help = "lr, times FACTOR after each of the steps AT",
    .rate = [](const OptimizerConfig& config, int64_t step, double) {
      const auto decays =
          std::ranges::count_if(config.decay_at, [step](int64_t at) { return at <= step; });
      return config.lr * std::pow(config.decay_factor, static_cast<double>(decays));
    }};
constexpr LrSchedule kConstant{
    .name = "constant", .help = "lr", .rate = [](const OptimizerConfig& config, int64_t, double) {
      return config.lr;
    }};

}  // namespace

Registry<LrSchedule> lr_schedules() {
  static constexpr std::array kAll{&kCosine, &kLinear, &kPolynomial, &kStep, &kConstant};
  return kAll;
}

const LrSchedule& lr_schedule_of(const OptimizerConfig& config) {
  return find(lr_schedules(), "optimizer.schedule", config.schedule);
}

io::Config with_learning_rate(io::Config config, bool trained) {
  OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.lr != io::kAutomatic) {
    return config;
  }
  const OptimizerKind& kind = optimizer_of(optimizer);
  optimizer.lr = kind.rate * (trained ? 0.05 : 1);
  if (config.model.kind != "gpt" && config.model.kind != "decoder") {
    optimizer.lr *= kind.scale_free ? 0.25 : 1;
  } else if (config.model.width > kRateWidth) {
    if (!Parametrization(config).scales()) {
      optimizer.lr *= static_cast<double>(kRateWidth) / static_cast<double>(config.model.width);
    } else if (config.train.base_width == 0) {
      config.train.base_width = kRateWidth;
    }
  }
  optimizer.min_lr = std::min(optimizer.min_lr, optimizer.lr);
  return config;
}

double learning_rate(const OptimizerConfig& config, int64_t step, int64_t steps) {
  require(config.lr != io::kAutomatic, "a learning rate that with_learning_rate chose");
  if (step < config.warmup_steps) {
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  }
  const auto rest = static_cast<double>(std::max<int64_t>(steps - config.warmup_steps, 1));
  const double t = std::clamp(static_cast<double>(step - config.warmup_steps) / rest, 0.0, 1.0);
  return lr_schedule_of(config).rate(config, step, t);
}

}  // namespace espalier::optim
