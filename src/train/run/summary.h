#pragma once
// The contents of metrics.jsonl, summary.json, trace.json (docs/formats.md) and the pictures of a
// pipeline.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "parallel/transport/communicator.h"
#include "src/core/trace.h"
#include "src/train/run/setup.h"

namespace espalier::train {

/// Seconds of a step on one rank; on a device, of enqueueing it.
struct StepTimes {
  double compute = 0;     ///< forwards and backwards
  double waited = 0;      ///< waiting for messages of the pipeline: bubbles and transfers
  double collective = 0;  ///< reductions of gradients after backward
  double update = 0;      ///< optimizer, with ZeRO-1 including the gather of values
};

/// A line of metrics.jsonl.
struct StepReport {
  int64_t step = 0;  ///< steps done, from 1
  double loss = 0;   ///< from the targets: mean over the global batch, before the update
  double lr = 0;
  double grad_norm = 0;  ///< not finite: the step was skipped (loss_scale.h)
  double loss_scale = 1;
  double seconds = 0;            ///< since the step began, or since the end of the previous step
  double predictions_per_s = 0;  ///< tokens, or images, of all ranks
  bool of_images = false;
  StepTimes times;
  int64_t bytes_sent = 0;  ///< by rank 0 in this step
  int64_t allreduce_bytes = 0;
  int64_t p2p_bytes = 0;
  double sparsity = 0;
  double trial_seconds = 0;               ///< of AdaPrec's trials before this step
  std::optional<double> teacher_loss;     ///< mean of kernels::DistillationArgs::teacher_losses
  std::optional<double> mask_distance{};  ///< before this step (pruning/early_bird.h)
  std::optional<double> val_loss;
  /// Shares of the validation images whose class is the most likely one, or among the first five;
  /// the latter only with more than five classes.
  std::optional<double> val_top1{}, val_top5{};
};

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
