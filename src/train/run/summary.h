#pragma once
// What a run leaves for people and programs: lines of metrics.jsonl, summary.json, trace.json
// (docs/formats.md).
#include <filesystem>
#include <nlohmann/json.hpp>

#include "parallel/transport/communicator.h"
#include "src/core/trace.h"
#include "src/train/masks/pruner.h"
#include "src/train/run/trainer.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

nlohmann::ordered_json metrics_line(const StepReport& report);

struct SummaryInput {
  const io::Config& config;
  std::filesystem::path directory;
  Stage& stage;
  Arena& arena;
  const Fit& fit;
  const Totals& totals;
  const parallel::Grid& grid;
  const nlohmann::ordered_json& pipeline;  ///< pipeline_record.h; null: none
  int64_t steps = 0;
  bool finished = false;
  std::string git;
};
/// Collective: rank 0 reads metrics.jsonl again (a resumed run counts whole), gathers memory from
/// all ranks and writes summary.json.
void write_summary(const SummaryInput& input, parallel::Communicator& comm);

/// Collective: the spans of all ranks in one file.
void write_traces(const std::filesystem::path& path, const Trace& trace,
                  parallel::Communicator& comm);

}  // namespace espalier::train
