#pragma once
// Schedules of the learning rate: pure functions of the step, so checkpoints do not store them. The
// first warmup_steps steps have lr (step + 1) / warmup_steps; then
//
//   cosine      min_lr + (lr - min_lr) (1 + cos(pi t)) / 2
//   linear      lr + (min_lr - lr) t
//   polynomial  min_lr + (lr - min_lr) (1 - t)^power
//   wsd         lr + (min_lr - lr) max(0, 1 - (1 - t) / decay_share)
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

/// Width of the transformer whose learning rate OptimizerKind::rate is.
inline constexpr int64_t kRateWidth = 128;

/// Replaces optimizer.lr = "auto" by a number r, and the default of optimizer.min_lr by at most
/// r / 10. Throws Failure for another min_lr above r.
///
///   transformer (gpt, decoder)   the optimizer's rate, for a width of 128; if the network is
///                                wider, base_width becomes 128 unless it is set (B: the rate
///                                times 128 / B); in a parametrization that does not scale, the
///                                rate is multiplied by 128 / width
///   other networks               the optimizer's rate for images
///   of trained weights           a twentieth
///
/// With adamw the matrices of a dense transformer get 0.51 / width: 6.7e-4 at 768, 2e-4 at 2,560
/// (Brown et al., 2020, arXiv 2005.14165: 6e-4 and 1.6e-4). Measured: docs/tuning.md.
io::Config with_learning_rate(io::Config config, bool trained);

/// `step`: 0, 1, ... steps - 1. optimizer.lr is a number.
double learning_rate(const io::OptimizerConfig& config, int64_t step, int64_t steps);

}  // namespace espalier::optim
