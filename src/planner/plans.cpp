#include "src/planner/plans.h"

#include <algorithm>
#include <array>
#include <optional>

#include "src/core/error.h"

namespace espalier::planner {
namespace {

/// A run with storage "auto" takes the fastest for each matrix; here it is the fastest for all.
PlannedLayout predict_fastest(const PlannedRun& run, const Machine& machine, int ranks) {
  const std::vector<std::string> storages =
      run.config.sparse.storage.patterns.empty()
          ? storages_of(run)
          : std::vector<std::string>{run.config.sparse.storage.fallback};
  std::vector<PlannedLayout> found;
  std::optional<Failure> failure;
  for (const std::string& storage : storages) {
    io::Config config = run.config;
    config.sparse.storage.fallback = storage;
    try {
      StepPrediction step =
          predict_step({config, run.problem, run.layers, run.start, run.tensor}, machine, ranks);
      found.push_back({.step = std::move(step), .config = std::move(config)});
    } catch (const Failure& one) {
      failure = failure.value_or(one);
    }
  }
  if (found.empty()) {
    throw Failure(*failure);
  }
  return std::move(found[best_of(found, machine, run.tensor)]);
}

void add_layouts(const PlannedRun& run, const Machine& machine, int ranks,
                 const std::optional<SearchOptions>& search, Plans& plans) {
  if (!search) {
    plans.found.push_back(predict_fastest(run, machine, ranks));
    return;
  }
  SearchResult result = search_layouts(run, machine, ranks, *search);
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
                             .reason = "slower than those found"});
  }
}

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
