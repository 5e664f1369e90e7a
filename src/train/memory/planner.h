#pragma once
// Chooses stages, schedule, micro-batches and recompute before anything is allocated: a pure
// function of config, data, ranks and times, so every rank chooses the same. `--dry-run` shows it,
// with estimated times.
#include <limits>
#include <map>
#include <string>

#include "parallel/pipeline/carrier.h"
#include "src/train/memory/budget.h"
#include "src/train/stage/layout.h"

namespace espalier::train {

struct PlanInput {
  const io::Config& config;
  const ProblemShape& problem;
  std::span<const std::unique_ptr<model::Layer>> layers;  ///< of the network, not bound
  const InitialMasks& start;                              ///< of all parameters
  const LayerTimes& times;
  cost::Link link{};  ///< between ranks, to choose stages and schedule; the default costs nothing
  int ranks = 1;
  int rank = 0;     ///< rank whose slices of a sharded optimizer and of reductions are planned
  int threads = 1;  ///< per rank
  std::vector<int> machines{};  ///< of each rank (Membership::node); empty: unknown
  bool shares_cpus = false;     ///< a machine has more ranks than CPUs: waiting costs no time
  kernels::Planning place{};    ///< device or host whose memory is planned
  /// Route of messages between ranks.
  parallel::CarrierKind carrier = parallel::CarrierKind::host;
  bool reduces_on_device = false;        ///< gradients are reduced between devices
  const TeacherFile* teacher = nullptr;  ///< null: none
  /// Free bytes of a device. Throws Failure if the plan needs more.
  size_t available = std::numeric_limits<size_t>::max();
  /// Host memory of each rank. Schedules that need more are not chosen.
  size_t host = std::numeric_limits<size_t>::max();
};

struct Plan {
  int64_t pipeline = 1;  ///< resolved
  Layout layout;         ///< its schedule's name is parallel.schedule, resolved
  Fit fit;
  std::vector<std::string> notes;  ///< choices, for the user
  std::string advice;              ///< shown if the device runs out of memory
};

/// For runs: throws Failure, with the fix, if a parameter has more than sparse::kMaxElements. Plans
/// accept larger ones.
void check_sizes(std::span<const std::unique_ptr<model::Layer>> layers);

/// Of parallel.pipeline = "auto": more stages are taken if their step is shorter than this share.
inline constexpr double kWorthMoreStages = 0.95;
/// Of parallel.schedule = "auto": another schedule than 1f1b is taken if its step is shorter than
/// this share of that of 1f1b.
inline constexpr double kWorthAnotherSchedule = 0.98;

/// With parallel.pipeline = "auto" chooses among the stages that fit train.memory_budget those with
/// the shortest step by estimated_step; more stages than necessary only if they save 5 %
/// (kWorthMoreStages), because the times are measured. Asynchronous schedules take the fewest
/// stages. Usually fewer stages are faster: they have fewer bubbles and messages, so a pruned model
/// gains (Singh and Bhatele, IPDPS 2023). A note states the number for the unpruned model. Throws
/// Failure, with the fix, if nothing fits.
///
/// With parallel.schedule = "auto" chooses, for several stages, the schedule with the shortest step
/// by estimated_step among the automatic ones of the registry; 1f1b unless another one saves 2 %
/// (kWorthAnotherSchedule), fits the memory, recomputes no more, has no smaller micro-batches, and
/// keeps the copies of checkpoints. Schedules with several stages a rank send more messages, which
/// matters if activations are encoded, and sum the gradient of tied embeddings in another order:
/// in both cases they are left out.
Plan make_plan(const PlanInput& input);

/// For a plan of these stages: settings with which a rank would need less, with its bytes, and
/// whether these are at most `bytes` ("To fit, with what a rank would then need: …").
std::string ways_to_fit(const PlanInput& input, const Plan& plan, size_t bytes);

/// Seconds of a step of a synchronous plan, from `input.times` and `input.link`: the schedule,
/// simulated, and the exposed sums of gradients (exchange/replica_times.h).
double estimated_step(const PlanInput& input, const Plan& plan);

/// The memory of rank `input.rank` under the choices of `plan`, with `storages` (by parameter)
/// instead of those that are planned for storage "auto".
MemoryPlan plan_with_storages(const PlanInput& input, const Plan& plan,
                              const std::map<std::string, std::string>& storages);

}  // namespace espalier::train
