#pragma once
// The predicted step as spans of a trace: the actions of each rank of one replica, the exposed
// reduction and the update. Spans of one rank and track do not overlap; the last ends at the step's
// time.
//
//   pipeline            computing, by its simulation
//   reduction, update   the longest of all ranks, begun when the pipeline ends
//
// Of an asynchronous schedule, whose stages sum and update on their own: the several steps that
// were simulated, whose backward actions contain reductions and updates.
#include <filesystem>
#include <string>
#include <vector>

#include "src/core/trace.h"
#include "src/planner/step.h"

namespace espalier::planner {

struct StepSpan {
  int rank = 0;  ///< of the pipeline
  TraceEvent event;
  int stage = -1, micro_batch = -1;  ///< of an action; -1: reduction and update
};

/// Steps that the timeline contains.
double steps_in_timeline(const StepPrediction& step);
/// Seconds from the first span's begin to the last one's end.
double length_of_spans(const StepPrediction& step);

/// By rank, then begin.
std::vector<StepSpan> spans_of(const StepPrediction& step);

/// Chrome trace events, as in a run's trace.json (docs/formats.md): a process a rank of the
/// pipeline. Actions have `stage` and `micro_batch` as arguments.
void write_step_trace(const std::filesystem::path& path, const StepPrediction& step);

}  // namespace espalier::planner
