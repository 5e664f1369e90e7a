#include "src/train/memory/planner.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "parallel/pipeline/mailbox.h"
#include "parallel/pipeline/schedule/registry.h"
#include "src/model/networks/registry.h"
#include "src/train/exchange/replica_times.h"
#include "src/train/exchange/shards.h"
#include "src/train/masks/pruner.h"
#include "src/train/memory/host_memory.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {
namespace {

/// Of an activation that stage `stage` sends to the next, or its gradient.
size_t message_bytes(const PlanInput& input, const Layout& layout, int stage, int64_t samples) {
  const model::Layer& layer = *input.layers[layout.ends[static_cast<size_t>(stage)] - 1];
  const model::TensorSpec spec = layer.output(samples, dtype_by_name(input.config.train.dtype));
  return Part::message_bytes(activation_format(input.config), spec.dtype, spec.shape.count());
}

/// Plans of one config for given stages; fit_memory makes the memory choices.
class Planner {
 public:
  Planner(const PlanInput& input, const io::Config& config, const InitialMasks& start)
      : input_(input),
        config_(config),
        start_(start),
        grid_(parallel::make_grid(input.ranks, static_cast<int>(config.parallel.pipeline),
                                  parallel::rank_order_by_name(config.parallel.rank_order))),
        network_(model::parameters_of(input.layers)) {}

  Plan plan() const {
    const RunShape run = run_shape();
    Plan plan = with_fit(fit_memory(config_, run));
    if (input_.place.device) {
      plan.advice = check_device(config_, run, plan.fit, input_.available);
    }
    if (!plan.fit.note.empty()) {
      plan.notes.push_back(plan.fit.note);
    }
    if (plan.fit.plan.checkpoint_copy > 0 && !plan.fit.copies_checkpoints) {
      plan.notes.push_back(no_copy_note(config_, plan.fit.plan.checkpoint_copy));
    }
    return plan;
  }

  /// The plan with these memory choices, unchecked.
  Plan with_fit(const Fit& fit) const {
    return {.pipeline = config_.parallel.pipeline,
            .layout = layout_for(share_of(config_, grid_.data) / fit.choice.micro_batch),
            .fit = fit};
  }

  /// Whether the rank that needs most has the memory for the choices of `fit`. `plan` says so, too,
  /// but if it has not, it also finds all changes that would help, which takes long.
  bool has_memory(const Fit& fit) const {
    const size_t free = input_.place.device ? input_.available : std::numeric_limits<size_t>::max();
    const size_t most = fit.budget > 0 ? std::min(fit.budget, free) : free;
    return most == std::numeric_limits<size_t>::max() ||
           plan_memory(config_, run_shape(), fit.choice).needed() <= most;
  }

  MemoryPlan plan_of_rank(const Fit& fit) const {
    const RunShape run = run_shape();
    const int stage = grid_.place_of(input_.rank).stage;
    const PassChoice choice{.micro_batch = fit.choice.micro_batch,
                            .recompute = fit.recompute(stage)};
    if (!run.stages) {
      return plan_memory(config_, run, choice);
    }
    const int64_t micro_batches = share_of(config_, run.ranks) / choice.micro_batch;
    return plan_stage(config_, run, stages_for(micro_batches, stage, stage + 1).front(), choice);
  }

  std::string ways(const Fit& fit, size_t bytes) const {
    return ways_to_fit(config_, run_shape(), fit.choice, bytes);
  }

 private:
  RunShape run_shape() const {
    const int replica = grid_.place_of(input_.rank).replica;
    RunShape run{.problem = input_.problem,
                 .ranks = grid_.data,
                 .places = places_of_replicas(),
                 .threads = input_.threads,
                 .place = input_.place,
                 .start = start_,
                 .teacher = input_.teacher,
                 .sharding = plan_shards(config_, replica, grid_.data),
                 .reduces_on_device = input_.reduces_on_device && grid_.data > 1,
                 .replica = replica};
    if (grid_.pipeline > 1 || config_.parallel.delay_stages > 1 || schedule_needs_more()) {
      run.stages = [this](int64_t micro_batches) {
        return stages_for(micro_batches, 0, grid_.pipeline);
      };
    }
    return run;
  }

  /// RunShape::places.
  std::vector<std::vector<int>> places_of_replicas() const {
    std::set<std::vector<int>> places;
    for (int stage = 0; !input_.machines.empty() && stage < grid_.pipeline; ++stage) {
      std::vector<int> machines;
      for (int replica = 0; replica < grid_.data; ++replica) {
        const int rank = grid_.rank_of({.stage = stage, .replica = replica});
        machines.push_back(input_.machines[static_cast<size_t>(rank)]);
      }
      places.insert(std::move(machines));
    }
    return {places.begin(), places.end()};
  }

  /// One rank runs its schedule, too: all but 1f1b may keep several micro-batches, have several
  /// chunks, or defer gradients of weights.
  bool schedule_needs_more() const {
    const parallel::ScheduleEntry& entry = parallel::schedule_entry(config_.parallel.schedule);
    return entry.synchronous && !entry.by_arrival() && entry.name != "1f1b";
  }

  Layout layout_for(int64_t micro_batches) const {
    return make_layout(config_, input_.ranks, micro_batches, input_.times);
  }

  /// Of ranks [first, end) of the pipeline.
  std::vector<StageShape> stages_for(int64_t micro_batches, int first, int end) const {
    const Layout layout = layout_for(micro_batches);
    const std::vector<bool> prunable = prunable_of(network_, config_.pruning);
    const int64_t samples = share_of(config_, layout.grid.data) / micro_batches;
    std::vector<size_t> boundary_bytes;
    for (int boundary = 0; boundary + 1 < layout.stages(); ++boundary) {
      boundary_bytes.push_back(message_bytes(input_, layout, boundary, samples));
    }
    const parallel::PipelineShape messages =
        layout.messages(std::move(boundary_bytes), input_.carrier);
    // Only asynchronous stages need it, and a copy has the programs of all ranks.
    const std::optional<Layout> needed =
        layout.asynchronous() ? std::optional(layout) : std::nullopt;
    std::vector<StageShape> stages;
    for (int rank = first; rank < end; ++rank) {
      const std::vector<PartShape> parts = layout.parts(rank);
      const std::vector<size_t> numbers = parameters_of(input_.layers, parts);
      StageShape stage{.rank = rank,
                       .layout = needed,
                       .parts = parts,
                       .numbers = numbers,
                       .start = masks_of_part(start_, numbers),
                       .messages = parallel::message_memory(messages, grid_.pipeline, rank)};
      for (const size_t number : numbers) {
        if (network_[number].prunable && !prunable[number]) {
          stage.exclude.push_back(network_[number].name);
        }
      }
      stages.push_back(std::move(stage));
    }
    return stages;
  }

  const PlanInput& input_;
  const io::Config& config_;
  const InitialMasks& start_;
  parallel::Grid grid_;
  std::vector<sparse::ParameterSpec> network_;  ///< all parameters
};

io::Config with_stages(io::Config config, int stages) {
  config.parallel.pipeline = stages;
  return config;
}

/// The config with the stages and the schedule of `plan`.
io::Config with_choices(const io::Config& config, const Plan& plan) {
  io::Config with = with_stages(config, static_cast<int>(plan.pipeline));
  if (with.parallel.schedule == "auto") {
    with.parallel.schedule = plan.layout.schedule.name;
  }
  return with;
}

/// Whether the schedule gives the results of 1f1b. With several stages a rank more activations are
/// encoded, and a rank that has both ends of the network sums the gradient of tied embeddings in
/// one array.
bool has_the_results_of_1f1b(const parallel::ScheduleEntry& entry, const io::Config& config) {
  return entry.chunks == 1 ||
         (activation_format(config) == kernels::WireFormat{} &&
          model::network_of(config.model).tied_parameter(config.model).empty());
}

bool costs_no_more_passes(const Plan& plan, const Plan& other) {
  for (int rank = 0; rank < plan.layout.grid.pipeline; ++rank) {
    if (plan.fit.recompute(rank) > other.fit.recompute(rank)) {
      return false;
    }
  }
  return plan.fit.choice.micro_batch >= other.fit.choice.micro_batch &&
         (plan.fit.copies_checkpoints || !other.fit.copies_checkpoints);
}

/// The plan of a number of stages. Throws Failure if 1f1b, or the schedule of the config, does not
/// fit.
Plan plan_schedule(const PlanInput& input, const io::Config& config) {
  Plan plain = Planner(input, config, input.start).plan();
  if (config.parallel.schedule != "auto" || !plain.layout.pipelined() || input.shares_cpus) {
    return plain;
  }
  const double step = estimated_step(input, plain);
  double shortest = kWorthAnotherSchedule * step;
  std::optional<Plan> best;
  for (const parallel::ScheduleEntry* entry : parallel::schedules()) {
    if (!entry->automatic || entry->name == plain.layout.schedule.name ||
        !has_the_results_of_1f1b(*entry, config)) {
      continue;
    }
    io::Config with = config;
    with.parallel.schedule = entry->name;
    try {
      const Planner planner(input, with, input.start);
      if (estimated_step(input, planner.with_fit(plain.fit)) >= shortest ||
          !planner.has_memory(plain.fit)) {
        continue;
      }
      Plan plan = planner.plan();
      const double mine = estimated_step(input, plan);
      if (mine < shortest && costs_no_more_passes(plan, plain) &&
          host_needed(plan.fit.plan, input.place.device) <= input.host) {
        shortest = mine;
        best = std::move(plan);
      }
    } catch (const Failure&) {  // e.g. too few layers
    }
  }
  if (!best) {
    return plain;
  }
  best->notes.push_back(fmt::format(
      "parallel.schedule = \"auto\": {}, whose step is {:.0f} % shorter than that of {} by "
      "estimate",
      best->layout.schedule.name, 100 * (1 - shortest / step), plain.layout.schedule.name));
  return *std::move(best);
}

/// Stages with the shortest step, or the fewest; 0: no number of stages fits.
int best_stages(const PlanInput& input, const io::Config& config, const InitialMasks& start,
                bool fewest) {
  int best = 0;
  double shortest = 0;
  for (int stages = 1; stages <= input.ranks; ++stages) {
    if (input.ranks % stages != 0) {
      continue;
    }
    const io::Config with = with_stages(config, stages);
    try {
      const Plan plan = fewest ? Planner(input, with, start).plan() : plan_schedule(input, with);
      if (fewest || plan.layout.asynchronous()) {
        return stages;
      }
      const double step = estimated_step(input, plan);
      if (best == 0 || step < kWorthMoreStages * shortest) {
        best = stages;
        shortest = step;
      }
    } catch (const Failure&) {  // too large, or batch or layers are not divisible
    }
  }
  return best;
}

/// Fewest stages of the unpruned network, for a note to the user.
std::string unpruned_note(const PlanInput& input) {
  if (!input.config.pruning.prunes() && !input.start.sparse) {
    return {};
  }
  io::Config config = input.config;
  config.pruning = {};
  InitialMasks dense{.masks = {}, .kept = {}};
  for (const sparse::ParameterSpec& spec : model::parameters_of(input.layers)) {
    dense.kept.push_back(spec.shape.count());
  }
  const int stages = best_stages(input, config, dense, true);
  return stages == 0 ? fmt::format("; unpruned it would fit no grid of {} ranks", input.ranks)
                     : fmt::format("; unpruned it would take {}", stages);
}

}  // namespace

void check_sizes(std::span<const std::unique_ptr<model::Layer>> layers) {
  for (const sparse::ParameterSpec& spec : model::parameters_of(layers)) {
    sparse::check_size(spec.name, spec.shape.count());
  }
}

Plan make_plan(const PlanInput& input) {
  if (input.config.parallel.pipeline != 0) {
    return plan_schedule(input, input.config);
  }
  const int stages = best_stages(input, input.config, input.start, false);
  // If nothing fits, planning one stage throws the Failure that states the missing bytes.
  const io::Config config = with_stages(input.config, std::max(stages, 1));
  const std::string unpruned = unpruned_note(input);
  Plan plan = plan_schedule(input, config);
  if (stages > 0) {
    plan.notes.insert(plan.notes.begin(),
                      fmt::format("parallel.pipeline = \"auto\": {} of {} ranks as stages{}",
                                  stages, input.ranks, unpruned));
  }
  return plan;
}

std::string ways_to_fit(const PlanInput& input, const Plan& plan, size_t bytes) {
  const io::Config config = with_choices(input.config, plan);
  return Planner(input, config, input.start).ways(plan.fit, bytes);
}

double estimated_step(const PlanInput& input, const Plan& plan) {
  // Of an update: weight, gradient, master and two moments, read and written.
  constexpr double kUpdateBytes = 32;
  const Layout& layout = plan.layout;
  const int64_t samples = plan.fit.choice.micro_batch;
  const double rows = static_cast<double>(samples) / static_cast<double>(input.times.samples);
  parallel::Costs costs = stage_costs(layout.ends, input.times);
  costs.latency = input.link.latency_s;
  for (parallel::StageTimes& stage : costs.stages) {
    stage.forward *= rows;
    stage.backward_input *= rows;
    stage.backward_weight *= rows;
  }
  for (int stage = 0; stage + 1 < layout.stages(); ++stage) {
    const size_t bytes = message_bytes(input, layout, stage, samples);
    costs.transfer = std::max(costs.transfer, static_cast<double>(bytes) / input.link.bytes_per_s);
  }
  const parallel::Timeline timeline = layout.policy
                                          ? parallel::simulate(*layout.policy, costs).second
                                          : parallel::simulate(layout.schedule, costs);
  const double end = timeline.makespan();
  const ReplicaRates rates{.link = input.link,
                           .overlaps = input.place.device,
                           .memory_per_s = input.place.device ? 1e12 : 2e10};
  double most = 0;
  for (int rank = 0; rank < layout.grid.pipeline; ++rank) {
    ReplicaWork work{
        .replicas = layout.grid.data,
        .gradient = gradient_type(input.config, input.config.train.global_batch / samples)};
    for (const size_t number : parameters_of(input.layers, layout.parts(rank), false)) {
      work.kept += input.start.kept[number];
    }
    for (int chunk = 0; chunk < layout.schedule.chunks; ++chunk) {
      const int stage = layout.schedule.stage_of(rank, chunk);
      work.backward_s += costs.stages[static_cast<size_t>(stage)].backward();
    }
    work.before_s = std::max(0.0, end - work.backward_s);
    work.update_s = static_cast<double>(work.kept) * kUpdateBytes / rates.memory_per_s;
    const ReplicaTimes times = replica_times(input.config, work, rates);
    most = std::max(most, times.reduction + times.update);
  }
  return end + most;
}

MemoryPlan plan_with_storages(const PlanInput& input, const Plan& plan,
                              const std::map<std::string, std::string>& storages) {
  io::Config config = with_choices(input.config, plan);
  config.sparse.storage.patterns.insert(config.sparse.storage.patterns.end(), storages.begin(),
                                        storages.end());
  return Planner(input, config, input.start).plan_of_rank(plan.fit);
}

}  // namespace espalier::train
