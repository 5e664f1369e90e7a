#include "src/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/core/error.h"
#include "src/optim/parametrization.h"
#include "src/optim/registry.h"

namespace espalier::optim {
namespace {

using io::OptimizerConfig;

constexpr LrSchedule kSchedules[]{
    {.name = "cosine",
     .help = "half a cosine from lr to min_lr",
     .to_min_lr = true,
     .rate =
         [](const OptimizerConfig& config, int64_t, double t) {
           return config.min_lr +
                  (config.lr - config.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * t));
         }},
    {.name = "linear",
     .help = "a line from lr to min_lr",
     .to_min_lr = true,
     .rate = [](const OptimizerConfig& config, int64_t,
                double t) { return config.lr + (config.min_lr - config.lr) * t; }},
    {.name = "polynomial",
     .help = "min_lr + (lr - min_lr) (1 - t)^POWER, t: share of the steps after warm-up",
     .to_min_lr = true,
     .rate =
         [](const OptimizerConfig& config, int64_t, double t) {
           return config.min_lr + (config.lr - config.min_lr) * std::pow(1 - t, config.power);
         }},
    {.name = "wsd",
     .help = "lr, then a line to min_lr in the last SHARE of the steps (warm-up, stable, decay)",
     .to_min_lr = true,
     .rate =
         [](const OptimizerConfig& config, int64_t, double t) {
           const double fallen = std::max(0.0, 1 - (1 - t) / config.decay_share);
           return config.lr + (config.min_lr - config.lr) * fallen;
         }},
    {.name = "step",
     .help = "lr, times FACTOR after each of the steps AT",
     .rate =
         [](const OptimizerConfig& config, int64_t step, double) {
           const auto decays =
               std::ranges::count_if(config.decay_at, [step](int64_t at) { return at <= step; });
           return config.lr * std::pow(config.decay_factor, static_cast<double>(decays));
         }},
    {.name = "constant", .help = "lr", .rate = [](const OptimizerConfig& config, int64_t, double) {
       return config.lr;
     }}};

}  // namespace

Registry<LrSchedule> lr_schedules() { return pointers_into<kSchedules>(); }

const LrSchedule& lr_schedule_of(const OptimizerConfig& config) {
  return find(lr_schedules(), "optimizer.schedule", config.schedule);
}

io::Config with_learning_rate(io::Config config, bool trained) {
  OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.lr != io::kAutomatic) {
    return config;
  }
  const OptimizerKind& kind = optimizer_of(optimizer);
  const bool transformer = config.model.kind == "gpt" || config.model.kind == "decoder";
  optimizer.lr = (transformer ? kind.rate : kind.image_rate) * (trained ? 0.05 : 1);
  if (transformer && config.model.width > kRateWidth) {
    int64_t& base = config.train.base_width;
    const bool scales = Parametrization(config).scales();
    base = scales && base == 0 ? kRateWidth : base;
    optimizer.lr *=
        static_cast<double>(kRateWidth) / static_cast<double>(scales ? base : config.model.width);
  }
  if (optimizer.min_lr == OptimizerConfig().min_lr) {
    optimizer.min_lr = std::min(optimizer.min_lr, optimizer.lr / 10);
  }
  check(!lr_schedule_of(optimizer).to_min_lr || optimizer.min_lr <= optimizer.lr,
        "optimizer.min_lr = {} is above the learning rate of optimizer.lr = \"auto\", {:g}; set "
        "optimizer.lr, or a smaller optimizer.min_lr",
        optimizer.min_lr, optimizer.lr);
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
