#pragma once
// The learning rate: a pure function of the step, so checkpoints do not store it.
//
//   warm-up   lr (step + 1) / warmup_steps, for step < warmup_steps; then
//   cosine    min_lr + (lr - min_lr) (1 + cos(pi t)) / 2
//   linear    lr + (min_lr - lr) t
//   constant  lr
// with t = (step - warmup_steps) / (steps - warmup_steps).
#include <cstdint>

#include "io/config/config.h"

namespace espalier::optim {

/// `step`: 0, 1, ... steps - 1.
double learning_rate(const io::OptimizerConfig& config, int64_t step, int64_t steps);

}  // namespace espalier::optim
