#include "src/planner/search.h"

#include <algorithm>

#include "src/core/error.h"

namespace espalier::planner {
namespace {

constexpr std::array kSchedules{"1f1b", "zb-h1", "zb-v"};
constexpr size_t kBest = 10;

/// The first sentence of a message, without its numbers' details.
std::string short_reason(const std::string& message) {
  return message.substr(0, message.find_first_of(":;\n"));
}

}  // namespace

SearchResult search_layouts(const PlannedRun& run, const Machine& machine, int ranks) {
  SearchResult found;
  const auto layers = static_cast<int>(run.layers.size());
  const auto try_layout = [&](int stages, const char* schedule, int64_t micro_batch) {
    io::Config config = run.config;
    config.parallel.pipeline = stages;
    config.parallel.schedule = schedule;
    config.train.micro_batch = micro_batch;
    if (config.train.memory_budget.empty()) {
      config.train.memory_budget = fmt::format("{:.0f}B", machine.memory);
    }
    ++found.tried;
    try {
      found.best.push_back({.stages = stages,
                            .schedule = stages == 1 ? "none" : schedule,
                            .prediction = predict_step({config, run.problem, run.layers, run.start},
                                                       machine, ranks)});
    } catch (const Failure& failure) {
      ++found.refused[short_reason(failure.what())];
    }
  };
  for (int stages = 1; stages <= std::min(ranks, layers); ++stages) {
    if (ranks % stages != 0) {
      continue;
    }
    const int64_t share = run.config.train.global_batch / (ranks / stages);
    for (int64_t micro_batch = 1; micro_batch <= std::max<int64_t>(share, 1); micro_batch *= 2) {
      for (const char* schedule : kSchedules) {
        try_layout(stages, schedule, micro_batch);
        if (stages == 1) {
          break;  // schedules are of stages
        }
      }
    }
  }
  if (found.best.empty()) {
    const auto most = std::ranges::max_element(found.refused, {},
                                               [](const auto& reason) { return reason.second; });
    fail("none of {} layouts over {} ranks is possible; for {} of them: {}", found.tried, ranks,
         most->second, most->first);
  }
  std::ranges::sort(found.best, {},
                    [](const Candidate& candidate) { return candidate.prediction.step; });
  if (found.best.size() > kBest) {
    found.best.erase(found.best.begin() + kBest, found.best.end());
  }
  return found;
}

}  // namespace espalier::planner
