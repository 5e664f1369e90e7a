#include "pruning/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pruning/registry.h"
#include "src/core/error.h"

namespace espalier::pruning {

Timing timing_of(const io::PruningConfig& config) {
  if (config.gradual()) {
    return {.from_step = config.from_step,
            .to_step = config.to_step,
            .every = interval_of(config),
            .initial_sparsity = 0,
            .final_sparsity = config.sparsity};
  }
  const int64_t step = std::max<int64_t>(config.at_step, 0);
  return {.from_step = step, .to_step = step, .final_sparsity = sparsity_of(config)};
}

void check_timing(const Timing& timing) {
  check(timing.from_step >= 0, "pruning: step {} is negative", timing.from_step);
  check(timing.to_step >= timing.from_step, "pruning: to_step = {} comes before from_step = {}",
        timing.to_step, timing.from_step);
  check(timing.every >= 1, "pruning: every = {} must be at least one step", timing.every);
  check_sparsity(timing.initial_sparsity);
  check_sparsity(timing.final_sparsity);
  check(timing.initial_sparsity <= timing.final_sparsity,
        "pruning: sparsity starts at {} and would fall to {}, but pruned elements do not come back",
        timing.initial_sparsity, timing.final_sparsity);
}

double target_sparsity(const Timing& timing, int64_t step) {
  if (step >= timing.to_step) {
    return timing.final_sparsity;
  }
  if (step <= timing.from_step) {
    return timing.initial_sparsity;
  }
  const double left = static_cast<double>(timing.to_step - step) /
                      static_cast<double>(timing.to_step - timing.from_step);
  return timing.final_sparsity +
         (timing.initial_sparsity - timing.final_sparsity) * left * left * left;
}

bool prune_at(const Timing& timing, int64_t step) {
  const bool listed =
      step == timing.to_step || (step >= timing.from_step && step < timing.to_step &&
                                 (step - timing.from_step) % timing.every == 0);
  return listed && target_sparsity(timing, step) > 0;
}

std::vector<int64_t> prune_steps(const Timing& timing) {
  std::vector<int64_t> steps;
  for (int64_t step = timing.from_step; step <= timing.to_step; ++step) {
    if (prune_at(timing, step)) {
      steps.push_back(step);
    }
  }
  return steps;
}

Moves moves_of(const io::PruningConfig& config, int64_t steps) {
  return {.from_step = timing_of(config).from_step,
          .to_step = config.last_move(steps),
          .every = interval_of(config),
          .fraction = config.drop_fraction};
}

void check_moves(const Moves& moves) {
  check(moves.from_step >= 0, "pruning: step {} is negative", moves.from_step);
  check(
      moves.to_step > moves.from_step,
      "pruning: masks are to move between step {} and step {}: set pruning.to_step to a later one",
      moves.from_step, moves.to_step);
  check(moves.every >= 1, "pruning: every = {} must be at least one step", moves.every);
  check(moves.fraction >= 0 && moves.fraction < 1,
        "pruning: drop_fraction = {} is outside [0, 1): it is the share of a layer's kept elements "
        "that one change may replace, such as 0.3",
        moves.fraction);
}

bool moves_at(const Moves& moves, int64_t step) {
  return moves.fraction > 0 && step > moves.from_step && step < moves.to_step &&
         (step - moves.from_step) % moves.every == 0;
}

double drop_fraction(const Moves& moves, int64_t step) {
  if (step >= moves.to_step) {
    return 0;
  }
  const double done = static_cast<double>(std::max<int64_t>(step - moves.from_step, 0)) /
                      static_cast<double>(moves.to_step - moves.from_step);
  return moves.fraction / 2 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace espalier::pruning
