#pragma once
// Schedules of the learning rate: pure functions of the step, so checkpoints do not store them. The
// first warmup_steps steps have lr (step + 1) / warmup_steps; then
//
//   cosine      min_lr + (lr - min_lr) (1 + cos(pi t)) / 2
//   linear      lr + (min_lr - lr) t
//   polynomial  min_lr + (lr - min_lr) (1 - t)^power
//   step        lr decay_factor^k, k: the number of decay_at that are at most `step`
//   constant    lr
//
// with t = (step - warmup_steps) / (steps - warmup_steps). `step` counts steps from 0, warm-up
// included, as PyTorch's MultiStepLR counts: "step:0.1:100" changes the 101st update.
// To add a schedule: its entry in schedule.cpp, and a row of tests/optim/schedule_test.cpp.
#include <cstdint>

#include "io/config/config.h"
#include "src/core/registry.h"

namespace espalier::optim {

struct LrSchedule {
  std::string_view name;
  std::string_view help;
  bool to_min_lr = false;  ///< reads optimizer.min_lr, which is then at most lr
  /// The learning rate after warm-up; t in [0, 1].
  double (*rate)(const io::OptimizerConfig& config, int64_t step, double t) = nullptr;
};

Registry<LrSchedule> lr_schedules();
/// Throws Failure that lists the names.
const LrSchedule& lr_schedule_of(const io::OptimizerConfig& config);

/// `step`: 0, 1, ... steps - 1.
double learning_rate(const io::OptimizerConfig& config, int64_t step, int64_t steps);

}  // namespace espalier::optim
