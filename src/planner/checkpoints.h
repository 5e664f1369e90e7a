#pragma once
// Predicts what checkpoints cost: the size of a file, the time to write it, what steps wait for it,
// and the time to read it at a start.
//
//   write        bytes of the file / disk.write; all ranks write one file at once
//   background   (train.checkpoint_background, and room in memory_budget) a step pays the copy of
//                the largest share: 2 bytes / bandwidth a byte. The disk writes beside training;
//                the next save waits for it:
//                  seconds a step = max(copy / every, write / every - step)
//   else         the step waits:  seconds a step = write / every
//   start        bytes of the file / disk.read, at least
//
// Not in the model: cores that a save takes from a run on CPUs, and a change of masks between two
// saves.
#include <optional>
#include <span>

#include "src/planner/planned_ranks.h"

namespace espalier::planner {

struct CheckpointPrediction {
  double bytes = 0;  ///< of a file at the end of the run, as pruning leaves the network
  bool background = true;
  double copy = 0;                     ///< seconds of the step that copies; 0 without background
  std::optional<double> write, start;  ///< seconds; empty: the machine file has no such rate
  int64_t every = 0;                   ///< steps between two; 0: at the end only
  std::optional<double> per_step;      ///< mean seconds that a step takes longer; with `every` only
};

/// Bytes of the host's memory that the fullest rank on a device needs: pinned memory, and the copy
/// for a checkpoint.
double host_memory(std::span<const PlannedRank> ranks);

/// Of a run with `config` over the ranks of its first replica; each stage's plan counts the shares
/// of all its replicas. Empty if the run writes no checkpoint.
std::optional<CheckpointPrediction> predict_checkpoints(const Machine& machine,
                                                        const io::Config& config,
                                                        const StepPrediction& step,
                                                        std::span<const PlannedRank> ranks);

}  // namespace espalier::planner
