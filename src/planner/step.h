#pragma once
// Predicts a training step on a machine: the layout, schedule and memory that a run would choose,
// and the time of each part.
//
//   layers      sum of the times of their operations (operations.h, machine.h)
//   pipeline    the run's own schedule, simulated with the stages' times and the slowest link
//               between two stages (parallel/pipeline/schedule/simulate.h)
//   reduction   of the gradients of kept elements over the replicas, in buckets that overlap with
//               the last backward (communication_cost/exchange_model.h); the part that is exposed
//   update      of the rank with the most
//
//   step = end of the pipeline + exposed reduction + update
//
// Not in the model: evaluations, checkpoints, changes of masks, codec time, ZeRO-1's gathers,
// shared links, jitter between ranks. Schedules without a common step (asynchronous ones) are
// refused.
#include <map>
#include <span>

#include "parallel/pipeline/schedule/simulate.h"
#include "src/planner/machine.h"
#include "src/planner/operations.h"
#include "src/planner/tensor_split.h"
#include "src/train/memory/planner.h"

namespace espalier::planner {

/// A run to predict. `layers`: of its network, without parameters (Layer::bind was not called).
struct PlannedRun {
  const io::Config& config;
  const train::ProblemShape& problem;
  std::span<const std::unique_ptr<model::Layer>> layers;
  const train::InitialMasks& start;
  TensorSplit tensor{};
};

struct StepPrediction {
  train::Plan plan;
  int ranks = 1;  ///< devices
  int64_t micro_batch = 1, micro_batches = 1;
  /// Seconds. compute: of the rank that computes longest; waiting: of that rank, until the end of
  /// the pipeline.
  double step = 0, compute = 0, waiting = 0, reduction = 0, update = 0;
  double samples_per_s = 0;
  double bytes_reduced = 0;                    ///< sent by a rank in a step
  double flops = 0;                            ///< of all ranks in a step, as the operations count
  parallel::Timeline timeline;                 ///< of one replica
  std::map<std::string, double> by_operation;  ///< seconds of all ranks of a replica, by name
};

/// Throws Failure if the run cannot be laid out over so many devices, or fits no memory. A rank of
/// the plan is `run.tensor.ways` devices.
StepPrediction predict_step(const PlannedRun& run, const Machine& machine, int devices);

}  // namespace espalier::planner
