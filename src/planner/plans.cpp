#include "src/planner/plans.h"

#include <algorithm>
#include <array>

#include "pruning/plan.h"
#include "pruning/regrowth.h"
#include "src/core/error.h"
#include "src/train/memory/budget.h"

namespace espalier::planner {
namespace {

/// The numbers of stages that the config allows.
std::vector<int> stages_of(const PlannedRun& run, int ranks) {
  if (run.config.parallel.pipeline != 0) {
    return {static_cast<int>(run.config.parallel.pipeline)};
  }
  std::vector<int> all;
  const int of_pipeline = ranks / run.tensor.ways;
  for (int stages = 1; stages <= std::min(of_pipeline, static_cast<int>(run.layers.size()));
       ++stages) {
    if (of_pipeline % stages == 0) {
      all.push_back(stages);
    }
  }
  return all;
}

/// Plans the config's own layouts.
class OwnLayout {
 public:
  OwnLayout(const PlannedRun& run, const Machine& machine, int ranks)
      : run_(run), machine_(machine), ranks_(ranks) {}

  PlannedLayout predict() {
    const std::vector<std::string> storages =
        run_.config.sparse.storage.patterns.empty()
            ? storages_of(run_)
            : std::vector<std::string>{run_.config.sparse.storage.fallback};
    std::vector<PlannedLayout> found;
    for (const std::string& storage : storages) {
      if (auto layout = with_storage(storage)) {
        found.push_back(std::move(*layout));
      }
    }
    if (found.empty()) {
      throw Failure(*failure_);
    }
    return std::move(found[best_of(found, machine_, run_.tensor)]);
  }

 private:
  /// With pipeline "auto": the stages that train::make_plan would take.
  std::optional<PlannedLayout> with_storage(const std::string& storage) {
    std::optional<PlannedLayout> best;
    for (const int stages : stages_of(run_, ranks_)) {
      std::optional<PlannedLayout> layout = with_stages(storage, stages);
      if (!layout) {
        continue;
      }
      const bool has_room = fits(layout->step, machine_, run_.tensor);
      const bool had_room = best && fits(best->step, machine_, run_.tensor);
      if (!best || (has_room && !had_room) ||
          (has_room == had_room && layout->step.step < train::kWorthMoreStages * best->step.step)) {
        best = std::move(layout);
      }
      if (has_room && best->step.plan.layout.asynchronous()) {
        break;
      }
    }
    return best;
  }

  std::optional<PlannedLayout> with_stages(const std::string& storage, int stages) {
    io::Config config = run_.config;
    config.sparse.storage.fallback = storage;
    config.parallel.pipeline = stages;
    try {
      StepPrediction step = predict_step(
          {config, run_.problem, run_.layers, run_.start, run_.tensor}, machine_, ranks_);
      return PlannedLayout{.step = std::move(step), .config = std::move(config)};
    } catch (const Failure& one) {
      failure_ = failure_.value_or(one);
      return {};
    }
  }

  const PlannedRun& run_;
  const Machine& machine_;
  int ranks_;
  std::optional<Failure> failure_;  ///< the first
};

/// Of `found`, which all have `ranks` ranks.
ScalingPoint point_of(std::span<const PlannedLayout> found, const Machine& machine,
                      const TensorSplit& tensor, int ranks) {
  if (found.empty()) {
    return {.ranks = ranks, .refused = "no layout is possible"};
  }
  const PlannedLayout& best = found[best_of(found, machine, tensor)];
  if (fits(best.step, machine, tensor)) {
    return {.ranks = ranks, .layout = best};
  }
  return {.ranks = ranks,
          .refused = fmt::format("a rank needs {:.3g} GB",
                                 static_cast<double>(best.step.plan.fit.plan.needed()) * 1e-9)};
}

ScalingPoint own_point(const PlannedRun& run, const Machine& machine, int ranks) {
  try {
    const PlannedLayout own = OwnLayout(run, machine, ranks).predict();
    return point_of({&own, 1}, machine, run.tensor, ranks);
  } catch (const Failure& failure) {
    return {.ranks = ranks, .refused = failure.what()};
  }
}

void add_layouts(const PlannedRun& run, const Machine& machine, int ranks,
                 const std::optional<SearchOptions>& search, Plans& plans) {
  if (!search) {
    plans.found.push_back(OwnLayout(run, machine, ranks).predict());
    return;
  }
  SearchResult result = search_layouts(run, machine, ranks, *search);
  plans.own.push_back(own_point(run, machine, ranks));
  for (Candidate& candidate : result.best) {
    plans.found.push_back(
        {.step = std::move(candidate.prediction), .config = std::move(candidate.config)});
  }
  for (auto& [stages, candidate] : result.by_stages) {
    plans.by_stages.push_back({.ranks = ranks,
                               .stages = stages,
                               .layout = PlannedLayout{.step = std::move(candidate.prediction),
                                                       .config = std::move(candidate.config)}});
  }
  for (const auto& [stages, reason] : result.impossible) {
    plans.by_stages.push_back({.ranks = ranks, .stages = stages, .refused = reason});
  }
  for (const auto& [reason, layouts] : result.refused) {
    plans.refused.push_back(
        {.ranks = ranks, .layouts = layouts, .tried = result.tried, .reason = reason});
  }
  if (result.slower > 0) {
    plans.refused.push_back({.ranks = ranks,
                             .layouts = result.slower,
                             .tried = result.tried,
                             .reason = "slower than the ten fastest"});
  }
}

}  // namespace

std::string beside(const StepPrediction& best, const StepPrediction& other) {
  if (other.step <= best.step) {
    return "best";
  }
  const std::array parts{std::pair{"compute", other.compute - best.compute},
                         std::pair{"waiting", other.waiting - best.waiting},
                         std::pair{"reduction", other.reduction - best.reduction},
                         std::pair{"update", other.update - best.update}};
  const auto most =
      std::ranges::max_element(parts, {}, [](const auto& part) { return part.second; });
  const double ms = most->second * 1e3;
  return fmt::format("+{:.1f} %: {} +{:.{}f} ms", 100 * (other.step / best.step - 1), most->first,
                     ms, ms < 10 ? 2 : 0);
}

bool fits(const StepPrediction& step, const Machine& machine, const TensorSplit& tensor) {
  return static_cast<double>(step.plan.fit.plan.needed()) <= machine.memory * tensor.ways;
}

std::string shortage(const PlannedRun& run, const Machine& machine, const PlannedLayout& layout) {
  const StepPrediction& step = layout.step;
  const train::MemoryPlan& plan = step.plan.fit.plan;
  const double memory = machine.memory * run.tensor.ways;
  const StepPredictor predictor(run, machine, step.ranks);
  return fmt::format("over {} ranks a rank needs {} ({}), and a device of \"{}\" has {}. {}",
                     step.ranks, train::size_text(plan.needed()), train::needs_text(plan.peak),
                     machine.name, train::size_text(static_cast<size_t>(memory)),
                     predictor.ways_to_fit(layout.config, step.plan, memory));
}

std::optional<FasterStorage> faster_storage(const PlannedRun& run, const Machine& machine,
                                            const PlannedLayout& layout) {
  constexpr double kWorthNaming = 0.8;
  io::Config config = layout.config;
  const std::string mine = config.sparse.storage.fallback;
  config.sparse.storage.fallback = "auto";
  const std::vector<std::string> storages =
      storages_of({config, run.problem, run.layers, run.start, run.tensor});
  if (!config.sparse.storage.patterns.empty() || storages.size() < 2) {
    return {};
  }
  StepPredictor predictor(run, machine, layout.step.ranks);
  const train::PassChoice choice{.micro_batch = layout.step.micro_batch,
                                 .recompute = layout.step.plan.fit.choice.recompute};
  const auto seconds = [&](const std::string& storage) {
    config.sparse.storage.fallback = storage;
    double sum = 0;
    for (const parallel::StageTimes& pass : predictor.network(config, choice, false).passes) {
      sum += pass.forward + pass.backward();
    }
    return sum;
  };
  FasterStorage best{.storage = mine};
  const double of_mine = seconds(mine);
  for (const std::string& storage : storages) {
    if (const double share = seconds(storage) / of_mine; share < best.share) {
      best = {storage, share};
    }
  }
  return best.share < kWorthNaming ? std::optional(best) : std::nullopt;
}

std::vector<LaterPart> later_parts(const PlannedRun& run, const Machine& machine,
                                   const PlannedLayout& layout) {
  std::vector<LaterPart> parts;
  for (const auto& [step, sparsity] :
       pruning::regrowths_of(run.config.pruning, run.config.train.steps)) {
    io::Config config = layout.config;
    if (sparsity == 0) {
      config.pruning = {};
      config.sparse.storage = {.fallback = "dense", .patterns = {}};
    } else {  // whole blocks or elements come back at random
      const bool blocks = pruning::shape_of(config.pruning).height > 0;
      config.pruning = {.method = blocks ? "random-block" : "random",
                        .sparsity = sparsity,
                        .scope = "layer",
                        .exclude = config.pruning.exclude,
                        .block = config.pruning.block};
    }
    const train::InitialMasks start =
        train::initial_masks(config, model::parameters_of(run.layers));
    const StepPrediction prediction = predict_step(
        {config, run.problem, run.layers, start, run.tensor}, machine, layout.step.ranks);
    parts.push_back({.after = step, .sparsity = sparsity, .seconds = prediction.step});
  }
  return parts;
}

Plans plan_layouts(const PlannedRun& run, const Machine& machine, std::span<const int> ranks,
                   const std::optional<SearchOptions>& search) {
  Plans plans;
  for (const int count : ranks) {
    try {
      add_layouts(run, machine, count, search, plans);
    } catch (const Failure& failure) {
      if (count == ranks.back() && plans.found.empty()) {
        throw;
      }
      plans.refused.push_back({.ranks = count, .layouts = 1, .tried = 1, .reason = failure.what()});
    }
  }
  return plans;
}

size_t best_of(std::span<const PlannedLayout> found, const Machine& machine,
               const TensorSplit& tensor) {
  const auto best = std::ranges::min_element(found, {}, [&](const PlannedLayout& layout) {
    return std::pair(!fits(layout.step, machine, tensor), layout.step.step);
  });
  return static_cast<size_t>(best - found.begin());
}

std::vector<ScalingPoint> dense_scaling(const PlannedRun& run, const Machine& machine,
                                        std::span<const int> ranks,
                                        const std::optional<SearchOptions>& search) {
  io::Config config = run.config;
  config.pruning = {};
  config.sparse.storage = {.fallback = "dense", .patterns = {}};
  const train::InitialMasks start = train::initial_masks(config, model::parameters_of(run.layers));
  const PlannedRun dense{config, run.problem, run.layers, start, run.tensor};
  std::vector<ScalingPoint> points;
  for (const int count : ranks) {
    try {
      Plans plans;
      add_layouts(dense, machine, count, search, plans);
      points.push_back(point_of(plans.found, machine, run.tensor, count));
    } catch (const Failure& failure) {
      points.push_back({.ranks = count, .refused = failure.what()});
    }
  }
  return points;
}

std::vector<ScalingPoint> scaling_of(const Plans& plans, const Machine& machine,
                                     const TensorSplit& tensor, std::span<const int> ranks) {
  std::vector<ScalingPoint> points;
  for (const int count : ranks) {
    const auto of_count = std::ranges::equal_range(
        plans.found, count, {}, [](const PlannedLayout& layout) { return layout.step.ranks; });
    points.push_back(point_of({of_count.begin(), of_count.end()}, machine, tensor, count));
  }
  return points;
}

}  // namespace espalier::planner
