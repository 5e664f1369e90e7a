#pragma once
// The page of `espalier plan -o`: planned layouts, their times and memory, and the best layout's
// pipeline. Self-contained and in the style of the page of runs (report.h).
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/report/run_data.h"

namespace espalier::report {

/// The step of the best layout, as in a trace: lanes in their order, spans from 0.
struct PlannedStep {
  std::vector<std::string> lanes;
  std::vector<TraceSpan> spans;
  double length = 0;  ///< microseconds
};

/// `plan`: the object of `espalier plan --json` (docs/planner.md); the page contains it unchanged.
/// The timeline keeps the longest 24,000 spans and states how many it leaves out.
std::string render_plan(const nlohmann::ordered_json& plan, const PlannedStep& step);

}  // namespace espalier::report
