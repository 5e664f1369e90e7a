#include "src/planner/planned_ranks.h"

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
    if (config.parallel.schedule == "auto") {
      config.parallel.schedule = layout.schedule.name;
    }
    config.parallel.partition = layout.partition();
  }
  return config;
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
                         .machines = machines_of(layout.grid.ranks(), machine, run.tensor),
                         .place = kernels::planning(config.run.backend),
                         .carrier = train::planned_carrier(config, config.run.backend == "cuda")};
  StepPredictor predictor(run, machine, step.ranks);
  const NetworkTimes& network =
      predictor.network(config, step.plan.fit.choice, defers_weights(layout.schedule));
  const double steps = steps_in_timeline(step);
  std::vector<PlannedRank> ranks;
  for (int rank = 0; rank < layout.grid.pipeline; ++rank) {
    PlannedRank& found = ranks.emplace_back();
    found.parts = layout.parts(rank);
    for (const auto& [action, begin, end] : step.timeline.ranks[static_cast<size_t>(rank)]) {
      found.seconds[std::string(name_of(action.kind))] += (end - begin) / steps;
    }
    found.waiting = step.timeline.idle(static_cast<size_t>(rank)) / steps;
    for (const train::PartShape& part : found.parts) {
      predictor.add_operations(network, part.first, part.end,
                               static_cast<double>(step.micro_batches), found.by_operation);
    }
    input.rank = layout.grid.rank_of({.stage = rank, .replica = 0});
    found.memory =
        layout.pipelined() ? train::plan_with_storages(input, step.plan, {}) : step.plan.fit.plan;
  }
  return ranks;
}

Elements elements_of(const PlannedRun& run) {
  const std::vector<sparse::ParameterSpec> specs = model::parameters_of(run.layers);
  const std::vector<int64_t> kept = kept_at_last(run);
  Elements sum{.kept = std::accumulate(kept.begin(), kept.end(), int64_t{0})};
  for (const sparse::ParameterSpec& spec : specs) {
    sum.all += spec.shape.count();
  }
  return sum;
}

}  // namespace espalier::planner
