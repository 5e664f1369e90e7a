#pragma once
// The layers, times and memory of each rank of a predicted layout.
#include <map>
#include <string>
#include <vector>

#include "src/planner/step.h"

namespace espalier::planner {

struct PlannedRank {
  std::vector<train::PartShape> parts;         ///< its layers
  std::map<std::string, double> seconds;       ///< of a step, by kind of action: "forward", …
  double waiting = 0;                          ///< seconds of a step, until the end of the pipeline
  std::map<std::string, double> by_operation;  ///< seconds of a step, by name
  train::MemoryPlan memory;
};

/// The ranks of the first replica. `step`: predicted for `config` of `run`, which may have other
/// choices (search.h). Cost: a plan of each rank.
std::vector<PlannedRank> planned_ranks(const PlannedRun& run, const Machine& machine,
                                       const io::Config& config, const StepPrediction& step);

/// Elements of a network; kept: once all pruning is done.
struct Elements {
  int64_t all = 0, kept = 0;
};
Elements elements_of(const PlannedRun& run);

}  // namespace espalier::planner
