#include "src/planner/planned_ranks.h"

#include <algorithm>
#include <numeric>

#include "src/planner/step_spans.h"
#include "src/train/run/pipeline.h"

namespace espalier::planner {
namespace {

/// The config with the choices of `plan`, so that planning again gives the same layout whatever the
/// times of the layers are.
io::Config chosen(io::Config config, const train::Plan& plan) {
  const train::Layout& layout = plan.layout;
  config.parallel.pipeline = layout.grid.pipeline;
  config.train.micro_batch = plan.fit.choice.micro_batch;
  config.train.recompute = name_of(plan.fit.choice.recompute);
  config.train.memory_budget.clear();
  if (layout.pipelined()) {
    config.parallel.partition = layout.partition();
  }
  return config;
}

/// Of the layers of `found`.
void add_operations(const PlannedRun& run, const Machine& machine,
                    const std::vector<LayerOperations>& layers, double passes, PlannedRank& found) {
  const DType dtype = dtype_by_name(run.config.train.dtype);
  const auto add = [&](const Operations& operations, double times) {
    for (const kernels::OperationRow& row : operations) {
      found.by_operation[row.name] +=
          static_cast<double>(row.calls) * times * seconds_of(machine, run.tensor, row, dtype);
    }
  };
  for (const train::PartShape& part : found.parts) {
    for (size_t i = part.first; i < part.end; ++i) {
      add(layers[i].forward, passes);
      add(layers[i].backward_input, passes);
      add(layers[i].backward_weight, passes);
      add({layers[i].other}, passes);
      add(layers[i].update, 1);
    }
  }
}

}  // namespace

std::vector<PlannedRank> planned_ranks(const PlannedRun& run, const Machine& machine,
                                       const io::Config& planned, const StepPrediction& step) {
  const train::Layout& layout = step.plan.layout;
  const io::Config config = chosen(planned, step.plan);
  const train::LayerTimes times = train::estimated_times(config, run.problem);
  train::PlanInput input{.config = config,
                         .problem = run.problem,
                         .layers = run.layers,
                         .start = run.start,
                         .times = times,
                         .ranks = layout.grid.ranks(),
                         .threads = static_cast<int>(machine.threads),
                         .place = kernels::planning(config.run.backend),
                         .carrier = train::planned_carrier(config, config.run.backend == "cuda")};
  const std::vector<train::PartShape> first = layout.parts(0);
  const bool deferred =
      std::ranges::any_of(first, [](const train::PartShape& part) { return part.deferred > 0; });
  StepPredictor predictor(run, machine, step.ranks);
  const NetworkTimes& network = predictor.network(config, step.plan.fit.choice, deferred);
  const double steps = steps_in_timeline(step);
  std::vector<PlannedRank> ranks;
  for (int rank = 0; rank < layout.grid.pipeline; ++rank) {
    PlannedRank& found = ranks.emplace_back();
    found.parts = layout.parts(rank);
    for (const auto& [action, begin, end] : step.timeline.ranks[static_cast<size_t>(rank)]) {
      found.seconds[std::string(name_of(action.kind))] += (end - begin) / steps;
    }
    found.waiting = step.timeline.idle(static_cast<size_t>(rank)) / steps;
    add_operations(run, machine, network.operations, static_cast<double>(step.micro_batches),
                   found);
    input.rank = layout.grid.rank_of({.stage = rank, .replica = 0});
    found.memory =
        layout.pipelined() ? train::plan_with_storages(input, step.plan, {}) : step.plan.fit.plan;
  }
  return ranks;
}

Elements elements_of(const PlannedRun& run) {
  const std::vector<sparse::ParameterSpec> specs = model::parameters_of(run.layers);
  const std::vector<int64_t> steps = train::pruning_steps(run.config.pruning);
  const std::vector<int64_t> kept =
      steps.empty() ? run.start.kept
                    : train::kept_after(run.config.pruning, specs, steps.back(), run.start.kept);
  Elements sum{.kept = std::accumulate(kept.begin(), kept.end(), int64_t{0})};
  for (const sparse::ParameterSpec& spec : specs) {
    sum.all += spec.shape.count();
  }
  return sum;
}

}  // namespace espalier::planner
