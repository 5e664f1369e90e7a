#include "src/planner/search.h"

#include <algorithm>
#include <array>

#include "src/config/parse.h"
#include "src/core/error.h"

namespace espalier::planner {
namespace {

constexpr std::array kSchedules{"1f1b", "zb-h1", "zb-v"};
constexpr size_t kBest = 10;

/// The first sentence of a message, without its numbers' details.
std::string short_reason(const std::string& message) {
  return message.substr(0, message.find_first_of(":;\n"));
}

class Search {
 public:
  Search(const PlannedRun& run, const Machine& machine, int ranks)
      : run_(run), machine_(machine), ranks_(ranks), config_(run.config) {
    const std::string& budget = config_.train.memory_budget;
    const double wanted =
        budget.empty() ? machine.memory : static_cast<double>(config::parse_bytes(budget));
    limit_ = std::min(wanted, machine.memory) * run.tensor.ways;
    // A plan that must fit a budget also finds all changes that would help, which takes long.
    config_.train.memory_budget.clear();
    if (config_.train.recompute != "auto") {
      recomputes_ = {config_.train.recompute};
    }
  }

  SearchResult run() {
    const auto layers = static_cast<int>(run_.layers.size());
    const int ranks = ranks_ / run_.tensor.ways;
    for (int stages = 1; stages <= std::min(ranks, layers); ++stages) {
      if (ranks % stages != 0) {
        continue;
      }
      const int64_t share = config_.train.global_batch / (ranks / stages);
      for (int64_t micro_batch = 1; micro_batch <= std::max<int64_t>(share, 1); micro_batch *= 2) {
        for (const char* schedule : kSchedules) {
          try_layout(stages, schedule, micro_batch);
          if (stages == 1) {
            break;  // schedules are of stages
          }
        }
      }
    }
    return std::move(found_);
  }

 private:
  void try_layout(int stages, const char* schedule, int64_t micro_batch) {
    config_.parallel.pipeline = stages;
    config_.parallel.schedule = schedule;
    config_.train.micro_batch = micro_batch;
    ++found_.tried;
    std::string why;
    for (const std::string& recompute : recomputes_) {  // the less, the faster
      config_.train.recompute = recompute;
      try {
        StepPrediction step = predict_step(
            {config_, run_.problem, run_.layers, run_.start, run_.tensor}, machine_, ranks_);
        if (static_cast<double>(step.plan.fit.plan.needed()) <= limit_) {
          found_.best.push_back({.stages = stages,
                                 .schedule = stages == 1 ? "none" : schedule,
                                 .prediction = std::move(step)});
          return;
        }
        why = fmt::format("a rank needs more than {:.3g} GB", limit_ * 1e-9);
      } catch (const Failure& failure) {
        why = short_reason(failure.what());
        break;
      }
    }
    ++found_.refused[why];
  }

  const PlannedRun& run_;
  const Machine& machine_;
  int ranks_;
  io::Config config_;  ///< of the layout that is tried
  double limit_ = 0;   ///< bytes of a rank
  std::vector<std::string> recomputes_{"none", "selective", "full"};
  SearchResult found_;
};

}  // namespace

SearchResult search_layouts(const PlannedRun& run, const Machine& machine, int ranks) {
  SearchResult found = Search(run, machine, ranks).run();
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
