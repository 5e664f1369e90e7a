#include "pruning/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pruning/registry.h"
#include "src/core/error.h"

namespace espalier::pruning {

PruningSchedule pruning_schedule_of(const io::PruningConfig& config) {
  const Kind& kind = method_of(config).kind;
  const auto* learning = std::get_if<Learning>(&kind);
  const auto* one_shot = std::get_if<OneShot>(&kind);
  const bool once = learning != nullptr && learning->prunes_at_end;
  const bool waits = one_shot != nullptr && one_shot->waits;
  if (config.gradual() && !once) {
    return {.from_step = config.from_step,
            .to_step = config.to_step,
            .every = interval_of(config),
            .initial_sparsity = 0,
            .final_sparsity = config.sparsity};
  }
  // Methods that wait: the latest step.
  const int64_t step =
      config.gradual() || waits ? config.to_step : std::max<int64_t>(config.at_step, 0);
  return {.from_step = step, .to_step = step, .final_sparsity = sparsity_of(config)};
}

void check_pruning_schedule(const PruningSchedule& schedule) {
  check(schedule.from_step >= 0, "pruning: step {} is negative", schedule.from_step);
  check(schedule.to_step >= schedule.from_step,
        "pruning: to_step = {} is before from_step = {}; set a later pruning.to_step",
        schedule.to_step, schedule.from_step);
  check(schedule.every >= 1,
        "pruning: every = {} is below 1; set the number of steps between two changes",
        schedule.every);
  check_sparsity(schedule.initial_sparsity);
  check_sparsity(schedule.final_sparsity);
  check(schedule.initial_sparsity <= schedule.final_sparsity,
        "pruning: sparsity would fall from {} to {}, but pruned elements never return; set a "
        "higher pruning.sparsity",
        schedule.initial_sparsity, schedule.final_sparsity);
}

double target_sparsity(const PruningSchedule& schedule, int64_t step) {
  if (step >= schedule.to_step) {
    return schedule.final_sparsity;
  }
  if (step <= schedule.from_step) {
    return schedule.initial_sparsity;
  }
  const double left = static_cast<double>(schedule.to_step - step) /
                      static_cast<double>(schedule.to_step - schedule.from_step);
  return schedule.final_sparsity +
         (schedule.initial_sparsity - schedule.final_sparsity) * left * left * left;
}

bool prune_at(const PruningSchedule& schedule, int64_t step) {
  const bool listed =
      step == schedule.to_step || (step >= schedule.from_step && step < schedule.to_step &&
                                   (step - schedule.from_step) % schedule.every == 0);
  return listed && target_sparsity(schedule, step) > 0;
}

int64_t first_prune_step(const PruningSchedule& schedule) {
  return schedule.initial_sparsity > 0
             ? schedule.from_step
             : schedule.from_step + std::min(schedule.every, schedule.to_step - schedule.from_step);
}

LearningWindow learning_window_of(const io::PruningConfig& config) {
  return config.gradual()
             ? LearningWindow{.from_step = config.from_step, .to_step = config.to_step}
             : LearningWindow{.from_step = 0, .to_step = std::max<int64_t>(config.at_step, 0)};
}

void check_learning_window(const io::PruningConfig& config) {
  check(config.gradual() || config.at_step > 0,
        "pruning.method = \"{}\" learns from the steps before it prunes, and there are none; set "
        "pruning.at_step to 1 or more, or pruning.from_step and pruning.to_step",
        config.method);
}

std::vector<int64_t> prune_steps(const PruningSchedule& schedule) {
  std::vector<int64_t> steps;
  for (int64_t step = schedule.from_step; step <= schedule.to_step; ++step) {
    if (prune_at(schedule, step)) {
      steps.push_back(step);
    }
  }
  return steps;
}

MaskMoveSchedule moves_of(const io::PruningConfig& config, int64_t steps) {
  return {.from_step = pruning_schedule_of(config).from_step,
          .to_step = config.last_move(steps),
          .every = interval_of(config),
          .fraction = config.drop_fraction};
}

void check_moves(const MaskMoveSchedule& moves) {
  check(moves.from_step >= 0, "pruning: step {} is negative", moves.from_step);
  check(moves.to_step > moves.from_step,
        "pruning: masks would move from step {} to step {}, which is not later; set a later "
        "pruning.to_step",
        moves.from_step, moves.to_step);
  check(moves.every >= 1,
        "pruning: every = {} is below 1; set the number of steps between two changes", moves.every);
  check(moves.fraction >= 0 && moves.fraction < 1,
        "pruning: drop_fraction = {} is out of range; set the share of a layer's kept elements "
        "that one change replaces, at least 0 and below 1, such as 0.3",
        moves.fraction);
}

bool moves_at(const MaskMoveSchedule& moves, int64_t step) {
  return moves.fraction > 0 && step > moves.from_step && step < moves.to_step &&
         (step - moves.from_step) % moves.every == 0;
}

double drop_fraction(const MaskMoveSchedule& moves, int64_t step) {
  if (step >= moves.to_step) {
    return 0;
  }
  const double done = static_cast<double>(std::max<int64_t>(step - moves.from_step, 0)) /
                      static_cast<double>(moves.to_step - moves.from_step);
  return moves.fraction / 2 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace espalier::pruning
