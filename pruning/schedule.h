#pragma once
// Steps and targets of pruning, as pure functions of the step.
//
//   one-shot  from_step == to_step: at that step, to final_sparsity (early_bird.h: or earlier)
//   gradual   at from_step, from_step + every, ... and at to_step exactly, with
//             s(t) = s_f + (s_i - s_f) (1 - (t - from) / (to - from))³
//
// `step` counts optimizer steps from 1; pruning follows the update of that step (0: before the
// first step). s(t) never falls, so masks only shrink. Source: Zhu and Gupta 2017
// (arXiv:1710.01878), eq. 1.
#include <cstdint>
#include <vector>

#include "io/config/config.h"

namespace espalier::pruning {

struct PruningSchedule {
  int64_t from_step = 0;
  int64_t to_step = 0;
  int64_t every = 1;            ///< steps between two prunings, >= 1
  double initial_sparsity = 0;  ///< before and at from_step
  double final_sparsity = 0;    ///< at and after to_step
};

PruningSchedule pruning_schedule_of(const io::PruningConfig& config);

/// Throws Failure unless 0 <= from_step <= to_step, every >= 1, 0 <= initial <= final < 1.
void check_pruning_schedule(const PruningSchedule& schedule);
/// s(step): the sparsity after pruning at `step`.
double target_sparsity(const PruningSchedule& schedule, int64_t step);
/// True when masks shrink at `step` (never for a target of zero).
bool prune_at(const PruningSchedule& schedule, int64_t step);
/// The first step at which `prune_at` is true, for a final_sparsity above 0.
int64_t first_prune_step(const PruningSchedule& schedule);
/// All steps at which `prune_at` is true, ascending.
std::vector<int64_t> prune_steps(const PruningSchedule& schedule);

/// Steps from_step + 1 … to_step, from which a method learns (registry.h, Learning).
struct LearningWindow {
  int64_t from_step = 0;
  int64_t to_step = 0;
};
LearningWindow learning_window_of(const io::PruningConfig& config);
/// Throws Failure for a window without steps.
void check_learning_window(const io::PruningConfig& config);

/// When masks move (drop_grow.h): at from_step + every, from_step + 2 every, ... below to_step.
struct MaskMoveSchedule {
  int64_t from_step = 0;
  int64_t to_step = 0;
  int64_t every = 1;
  double fraction = 0.3;  ///< of the kept elements of a layer that the first change could drop
};

/// Of a method whose masks move, in a run of `steps`.
MaskMoveSchedule moves_of(const io::PruningConfig& config, int64_t steps);
/// Throws Failure unless 0 <= from_step < to_step, every >= 1, 0 <= fraction < 1.
void check_moves(const MaskMoveSchedule& moves);
/// True when masks move at `step` (never for a fraction of zero).
bool moves_at(const MaskMoveSchedule& moves, int64_t step);
/// fraction / 2 (1 + cos(π (step - from) / (to - from))): falls to 0 at to_step. RigL, equation 1.
double drop_fraction(const MaskMoveSchedule& moves, int64_t step);

}  // namespace espalier::pruning
