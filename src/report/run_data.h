#pragma once
// The contents of a run directory, which is what `train` leaves: config.toml, metrics.jsonl,
// summary.json, trace.json and pictures of a pipeline. Each file may be missing, torn or from a run
// that is still going: missing data become notes, never guesses.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace espalier::report {

/// One line of metrics.jsonl. NaN where the line does not have the number.
struct StepRecord {
  int64_t step = 0;
  double seconds = 0;  ///< sum of step_ms up to and including this step
  double loss = 0;
  double teacher_loss = 0;
  double val_loss = 0;
  double val_top1 = 0;
  double val_top5 = 0;
  double lr = 0;
  double grad_norm = 0;
  double tokens_per_s = 0;
  double images_per_s = 0;
  double allreduce_bytes = 0;
  double p2p_bytes = 0;
  double sparsity = 0;
  size_t layout = 0;  ///< number of changes of the layout up to this step
};

/// From `step` on a run has another layout than before: number of ranks, storage, codec, …
struct LayoutChange {
  int64_t step = 0;
  std::string text;  ///< "ranks 2 → 1, replicas 2 → 1"
};

/// One complete ("X") event of trace.json.
struct TraceSpan {
  int rank = 0;
  int lane = 0;  ///< index into RunData::lanes: which track of a rank
  std::string name;
  double begin = 0;     ///< microseconds
  double duration = 0;  ///< microseconds
};

struct RunData {
  std::string name;  ///< directory name, made unique among the runs of a page
  std::map<std::string, std::string> config;  ///< "section.key" -> TOML text of the value
  nlohmann::json summary;                     ///< empty object when there is none
  std::vector<StepRecord> steps;              ///< ascending, each step once
  std::vector<LayoutChange> layouts;          ///< the first ones
  std::vector<std::string> lanes;  ///< track names in their order: compute, allreduce, ...
  std::vector<TraceSpan> spans;
  /// SVG: a step of the pipeline, measured and as its schedule predicts; empty without a pipeline.
  std::string pipeline_measured, pipeline_predicted;
  std::vector<std::string> notes;  ///< what is missing, as sentences

  /// All steps are done and summed up.
  bool complete() const {
    return !summary.empty() && summary.value("finished", nlohmann::json(true)) != false;
  }
};

/// Throws Failure when `directory` is no directory or holds none of config.toml, metrics.jsonl and
/// summary.json.
RunData read_run(const std::filesystem::path& directory);

/// Reads all; gives runs whose directories share a last name longer names ("a/x", "b/x").
std::vector<RunData> read_runs(std::span<const std::filesystem::path> directories);

/// summary[key] when it is a finite number.
std::optional<double> number_at(const nlohmann::json& object, const std::string& key);

}  // namespace espalier::report
