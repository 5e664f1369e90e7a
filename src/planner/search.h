#pragma once
// Searches the layouts of a run over a number of ranks: stages, schedule and micro-batch, each
// predicted (step.h). Exhaustive: every number of stages that divides the ranks and has a layer for
// each, the common synchronous schedules, and micro-batches of 1, 2, 4, … samples. Layouts that do
// not fit the device's memory are left out and counted.
#include "src/planner/step.h"

namespace espalier::planner {

struct Candidate {
  int64_t stages = 1;
  std::string schedule;  ///< "none" without stages
  StepPrediction prediction;
};

struct SearchResult {
  std::vector<Candidate> best;  ///< fastest first, at most ten
  size_t tried = 0;
  std::map<std::string, size_t> refused;  ///< reasons, with the number of layouts
};

/// Throws Failure if no layout is possible: with the most frequent reason.
SearchResult search_layouts(const PlannedRun& run, const Machine& machine, int ranks);

}  // namespace espalier::planner
