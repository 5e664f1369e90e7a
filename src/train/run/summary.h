#pragma once
// The contents of metrics.jsonl, summary.json, trace.json (docs/formats.md) and the pictures of a
// pipeline.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "parallel/transport/communicator.h"
#include "src/core/trace.h"
#include "src/train/run/reporter.h"

namespace espalier::train {

nlohmann::ordered_json metrics_line(const StepReport& report);
/// The settings and choices that decide the speed, bytes and memory of a launch's steps: "layout"
/// of the first line that it writes.
nlohmann::ordered_json layout_json(const Run& run);

/// Collective over the pipeline. Records its last step; returns numbers in seconds on world rank 0,
/// null elsewhere and without a pipeline. Clocks of one machine agree. Writes, or removes if there
/// is no pipeline (they are of an earlier launch with another layout),
///
///   pipeline-measured.svg    begin and end of every action on every rank of the first replica
///   pipeline-predicted.svg   simulated with the mean time of each stage's actions, without latency
///
/// The difference is the cost of messages: waiting that the order of actions does not explain. For
/// an asynchronous pipeline "the last step" covers all steps since the last drain, and the numbers
/// include each stage's delays and the number of weight versions.
nlohmann::ordered_json record_pipeline(const std::filesystem::path& directory, const Layout& layout,
                                       const Pipeline& pipeline, Ranks& ranks);

struct SummaryInput {
  const Run& run;
  int64_t timed_steps = 0;                 ///< of Run::operation_times
  const nlohmann::ordered_json& pipeline;  ///< of record_pipeline; null: none
  bool finished = false;
  std::string git;
  std::string codec_choice;  ///< CodecChoice::state of all stages
};
/// Collective: rank 0 reads metrics.jsonl, which includes the steps before a resume, gathers memory
/// from all ranks and writes summary.json.
void write_summary(const SummaryInput& input);

/// Collective: writes the spans of all ranks to one file.
void write_traces(const std::filesystem::path& path, const Trace& trace,
                  parallel::Communicator& comm);

}  // namespace espalier::train
