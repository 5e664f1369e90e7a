#pragma once
// What is decided before anything is allocated: stages, schedule, micro-batches, recompute. A pure
// function of config, data and ranks, so every rank decides the same, and `--dry-run` shows it.
#include <limits>
#include <string>

#include "parallel/pipeline/carrier.h"
#include "src/train/memory/budget.h"
#include "src/train/stage/layout.h"

namespace espalier::train {

struct PlanInput {
  const io::Config& config;
  const ProblemShape& problem;
  const Start& start;  ///< of all parameters
  const LayerTimes& times;
  int ranks = 1;
  int rank = 0;               ///< whose part of a shared optimizer, and of sums, counts
  int threads = 1;            ///< of a rank
  kernels::Planning place{};  ///< whose memory is planned
  /// Of messages between ranks.
  parallel::CarrierKind carrier = parallel::CarrierKind::host;
  bool sums_on_device = false;  ///< gradients go from device to device
  /// Bytes of a device that are free; more than that is refused.
  size_t available = std::numeric_limits<size_t>::max();
};

struct Plan {
  int64_t pipeline = 1;  ///< that of the config, or what stands for "auto"
  Layout layout;
  Fit fit;
  std::vector<std::string> notes;  ///< what was chosen, for people
  std::string advice;              ///< should a device's memory run out all the same
};

/// With parallel.pipeline = "auto" as few stages as fit train.memory_budget. That is why a pruned
/// model trains faster (Singh and Bhatele, IPDPS 2023): fewer stages, fewer bubbles and messages; a
/// note tells what it would take unpruned. Throws Failure, with the fix, when nothing fits.
Plan make_plan(const PlanInput& input);

}  // namespace espalier::train
