#pragma once
// A few steps of the trace, chosen to be looked at: the first steps, typical ones (a step of median
// duration of the second half and its neighbours) and the slowest step.
//
// A step of rank 0 ends where its optimizer spans end and another kind of work begins. Each window
// keeps at most `limit` spans of all ranks, the longest; how many shorter ones were left out is
// stated.
#include <nlohmann/json.hpp>

#include "src/report/run_data.h"

namespace espalier::report {

/// {lanes: [name], ranks: [n], names: [span name], windows: [{label, begin (us), length (us),
/// left_out, spans: [[rank, lane, row, begin, duration, name index], ...]}]}; spans begin relative
/// to their window. `row`: nested and overlapping spans of a lane stand in further rows. Null
/// without spans.
nlohmann::json timeline(const RunData& run, size_t limit);

/// One step, which is shown whole: its only window is [0, length].
struct StepSpans {
  std::span<const TraceSpan> spans;
  const std::vector<std::string>& lanes;
  std::string label;
  double length = 0;  ///< microseconds
};
/// The same object.
nlohmann::json timeline_of_step(const StepSpans& step, size_t limit);

}  // namespace espalier::report
