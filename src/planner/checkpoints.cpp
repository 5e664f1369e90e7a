#include "src/planner/checkpoints.h"

#include <algorithm>

namespace espalier::planner {

double host_memory(std::span<const PlannedRank> ranks) {
  double most = 0;
  for (const PlannedRank& rank : ranks) {
    const size_t bytes = train::sum_of(rank.memory.pinned) + rank.memory.checkpoint_copy;
    most = std::max(most, static_cast<double>(bytes));
  }
  return most;
}

std::optional<CheckpointPrediction> predict_checkpoints(const Machine& machine,
                                                        const io::Config& config,
                                                        const StepPrediction& step,
                                                        std::span<const PlannedRank> ranks) {
  if (config.train.checkpoint_every < 0) {
    return std::nullopt;
  }
  const train::Fit& fit = step.plan.fit;
  CheckpointPrediction found{.background = train::saves_in_background(config) &&
                                           (fit.budget == 0 || fit.copies_checkpoints),
                             .every = config.train.checkpoint_every};
  double copied = 0;
  for (const PlannedRank& rank : ranks) {
    found.bytes += static_cast<double>(rank.memory.checkpoint_file);
    copied = std::max(copied, static_cast<double>(rank.memory.checkpoint_copy));
  }
  if (found.background) {
    found.copy = 2 * copied / (machine.bandwidth * machine.memory_share);
  }
  if (machine.disk_read > 0) {
    found.start = found.bytes / machine.disk_read;
  }
  if (machine.disk_write > 0) {
    found.write = found.bytes / machine.disk_write;
    if (found.every > 0) {
      const auto every = static_cast<double>(found.every);
      found.per_step = found.background
                           ? std::max(found.copy / every, *found.write / every - step.step)
                           : *found.write / every;
    }
  }
  return found;
}

}  // namespace espalier::planner
