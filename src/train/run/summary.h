#pragma once
// The contents of metrics.jsonl, summary.json and trace.json (docs/formats.md).
#include <filesystem>
#include <nlohmann/json.hpp>

#include "parallel/transport/communicator.h"
#include "src/core/trace.h"
#include "src/train/run/reporter.h"

namespace espalier::train {

nlohmann::ordered_json metrics_line(const StepReport& report);

struct SummaryInput {
  const Run& run;
  const nlohmann::ordered_json& pipeline;  ///< pipeline_record.h; null: none
  bool finished = false;
  std::string git;
};
/// Collective: rank 0 reads metrics.jsonl, which includes the steps before a resume, gathers memory
/// from all ranks and writes summary.json.
void write_summary(const SummaryInput& input);

/// Collective: writes the spans of all ranks to one file.
void write_traces(const std::filesystem::path& path, const Trace& trace,
                  parallel::Communicator& comm);

}  // namespace espalier::train
