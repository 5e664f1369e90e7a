#pragma once
// Predicts a training step on a machine: the layout, schedule and memory that a run would choose,
// and the time of each part.
//
//   layers      sum of the times of their operations (operations.h, machine.h)
//   pipeline    the run's own schedule, simulated with the stages' times and the slowest link
//               between two stages (parallel/pipeline/schedule/simulate.h)
//   reduction   of the gradients of kept elements over the replicas: the exposed part
//               (train/exchange/replica_times.h, links.h)
//   update      of the rank with the most; under ZeRO-1 with the gather of values
//
//   step = end of the pipeline + exposed reduction + update
//
// In an asynchronous schedule each stage sums and updates on its own, within the pipeline: a
// step is the time between two updates of a long simulation, and a share of the time in which
// the pipeline empties (train::kDrainEvery).
//
// Not in the model: evaluations, checkpoints (checkpoints.h), changes of masks, jitter between
// ranks.
#include <map>
#include <span>

#include "parallel/pipeline/schedule/simulate.h"
#include "src/planner/links.h"
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

/// Kept elements of each parameter of the network once all pruning is done.
std::vector<int64_t> kept_at_last(const PlannedRun& run);

/// Whether weight gradients are actions of their own, whose operands are then copied.
bool defers_weights(const parallel::Schedule& schedule);

struct StepPrediction {
  train::Plan plan;
  int ranks = 1;  ///< devices
  int64_t micro_batch = 1, micro_batches = 1;
  /// Seconds. compute: of the rank that computes longest; waiting: of that rank, until the end of
  /// the pipeline.
  double step = 0, compute = 0, waiting = 0, reduction = 0, update = 0;
  double samples_per_s = 0;
  double bytes_reduced = 0;  ///< sent by a rank to other replicas in a step
  double flops = 0;          ///< of all ranks in a step, as the operations count
  /// Of one replica. Of an asynchronous schedule: several steps, with reductions and updates in the
  /// backward actions.
  parallel::Timeline timeline;
  std::map<std::string, double> by_operation;  ///< seconds of all ranks of a replica, by name
};

/// The layers of a network with one storage, micro-batch and recompute: what all layouts share.
struct NetworkTimes {
  std::vector<LayerOperations> operations;
  std::vector<parallel::StageTimes> passes;  ///< [layers] seconds
  std::vector<double> updates;               ///< [layers] seconds
};

/// The pipeline of a layout: what all reductions share.
struct PipelineTimes {
  parallel::Costs costs;
  parallel::Timeline timeline;
  double end = 0;      ///< seconds of a step until the last backward has ended
  double compute = 0;  ///< of the rank that computes longest
};

/// Predictions of one run with changed configs: parts that they share are computed once.
class StepPredictor {
 public:
  /// All must outlive it. A rank of the plan is `run.tensor.ways` devices. Throws Failure if the
  /// machine has fewer devices.
  StepPredictor(const PlannedRun& run, const Machine& machine, int devices);

  /// A config that differs from the run's in train.micro_batch and .recompute, sparse.storage and
  /// in [parallel]. Throws Failure if the run cannot be laid out, or does not fit its
  /// train.memory_budget.
  StepPrediction predict(const io::Config& config);

  /// Settings with which a rank of this plan of `config` would need less (train::ways_to_fit).
  std::string ways_to_fit(const io::Config& config, const train::Plan& plan, double bytes) const;

  // Its parts, for a search:

  int ranks() const { return devices_ / ways_; }
  const NetworkTimes& network(const io::Config& config, const train::PassChoice& choice,
                              bool deferred);
  PipelineTimes pipeline(const io::Config& config, const train::Layout& layout,
                         const NetworkTimes& network) const;
  /// Fills the times of `found`.
  void add_step(const io::Config& config, const train::Layout& layout, const NetworkTimes& network,
                const PipelineTimes& pipeline, StepPrediction& found) const;
  /// Seconds of each layer in a step, if nothing hides the sums of gradients: micro-batches,
  /// reduction, update. With it `balance_ranks` finds stages for slow links.
  std::vector<double> layer_seconds(const io::Config& config, const train::Layout& layout,
                                    const NetworkTimes& network) const;
  /// Adds the seconds of layers [first, end) in a step of `passes` micro-batches, by operation.
  void add_operations(const NetworkTimes& network, size_t first, size_t end, double passes,
                      std::map<std::string, double>& sums) const;
  /// Bytes of the rank that needs most: its parameters and tapes, without buffers and scratch. So
  /// it is less than the plan's.
  double least_memory(const io::Config& config, const train::Layout& layout,
                      const NetworkTimes& network) const;

 private:
  train::PlanInput input_of(const io::Config& config, const train::LayerTimes& times) const;
  double seconds(const kernels::OperationRow& row) const;
  double seconds_of_all(const Operations& operations) const;
  Links links_of(const train::Layout& layout) const;
  train::ReplicaTimes exchange(const io::Config& config, const train::Layout& layout,
                               const NetworkTimes& network, const Links& links,
                               const parallel::Costs& costs, int rank, double end) const;
  parallel::Costs costs_of(const io::Config& config, const train::Layout& layout,
                           const NetworkTimes& network) const;
  PipelineTimes asynchronous(const io::Config& config, const train::Layout& layout,
                             const NetworkTimes& network, parallel::Costs costs) const;
  static double flops_of(const NetworkTimes& network, double passes);

  const PlannedRun& run_;
  const Machine& machine_;
  int ways_;  ///< devices of a rank
  int devices_;
  DType dtype_;
  std::vector<int64_t> kept_;  ///< of each parameter, once all pruning is done
  std::map<std::string, NetworkTimes> networks_;
};

/// Throws Failure if the run cannot be laid out over so many devices, or does not fit its
/// train.memory_budget.
StepPrediction predict_step(const PlannedRun& run, const Machine& machine, int devices);

}  // namespace espalier::planner
