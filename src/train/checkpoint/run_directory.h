#pragma once
// A run directory (contract: docs/formats.md): lock, resolved config, manifest.json, metrics.jsonl,
// checkpoints/, summary.json, trace.json, tensorboard/. Rank 0 writes it; other ranks know the
// paths only.
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/config/config.h"
#include "io/run/event_file.h"
#include "io/run/metrics.h"
#include "parallel/transport/communicator.h"
#include "src/train/checkpoint/manifest.h"

namespace espalier::train {

/// The files that a run writes beside its checkpoints and its lock.
inline constexpr std::array<std::string_view, 8> kRunFiles{
    "config.toml", "manifest.json", "metrics.jsonl",         "summary.json",
    "trace.json",  "adaprec.jsonl", "pipeline-measured.svg", "pipeline-predicted.svg"};

/// Throws Failure if `input` is a file that a run writes to `run`, or lies in its checkpoints/ or
/// tensorboard/: the run would replace what it reads. `name` begins the message: "train.teacher",
/// for example.
void check_not_of_run(std::string_view name, const std::string& input,
                      const std::filesystem::path& run);

/// The run among whose checkpoints `path` lies, or is their folder; `path` is without links.
std::optional<std::filesystem::path> run_of_checkpoints(const std::filesystem::path& path);

class RunDirectory {
 public:
  /// Collective. Rank 0 takes the lock and selects the start of the run from `resume`:
  ///   ""      fresh; Failure if the directory holds a run
  ///   "none"  fresh; `begin` removes an earlier run
  ///   "auto"  the newest intact checkpoint in the directory; fresh if there is none; Failure if
  ///           all are damaged. All ranks that see a file verify a part of it each
  ///   FILE    that checkpoint. If it is not in checkpoints/: Failure if the directory holds a
  ///           checkpoint or a summary; a run that saved neither is replaced
  RunDirectory(const std::filesystem::path& root, const std::string& resume,
               parallel::Communicator& comm);

  const std::filesystem::path& root() const { return root_; }
  /// The checkpoint to resume from.
  const std::optional<std::filesystem::path>& resume_file() const { return resume_file_; }
  /// The earlier attempt that this fresh run replaces with `resume` "auto": it ended before its
  /// first checkpoint. Empty: there is none, or its files cannot be read.
  struct Attempt {
    io::Config config;
    Manifest manifest;
  };
  const std::optional<Attempt>& earlier_attempt() const { return earlier_; }
  std::filesystem::path checkpoint_path(int64_t step) const;
  std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }
  std::filesystem::path events() const { return root_ / "tensorboard"; }

  /// Rank 0: removes an earlier run that this one replaces, or sets its checkpoints after
  /// `resumed_step` aside; writes config.toml and manifest.json, and opens metrics.jsonl, kept up
  /// to `resumed_step` (-1: empty), and with run.tensorboard an event file. Until the run's end
  /// summary.json does not say "finished".
  void begin(const io::Config& config, const Manifest& manifest, int64_t resumed_step);
  /// Notes for the user about `begin` and the constructor; empties the list.
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }
  /// Rank 0: throws Failure if another process has taken the directory over (RunLock).
  void check_lock() const;
  /// Rank 0 writes one line; other ranks do nothing.
  void write_metrics(const nlohmann::ordered_json& line);
  /// Rank 0, with run.tensorboard: writes the bytes of an io::EventSummary.
  void write_events(int64_t step, std::string_view summary);
  /// Rank 0, of a launch that made no step: if summary.json is of `step`, it holds again, with the
  /// pictures and the trace beside it. Returns whether it does.
  bool restore_summary(int64_t step, bool finished) const;
  /// Rank 0: all lines and events to the disk, before a checkpoint of their steps is. Another
  /// thread may call it and `check_lock`.
  void sync_metrics() const;

 private:
  void decide(const std::string& resume);
  void resume_newest(parallel::Communicator& comm);
  void resume_from(const std::filesystem::path& file);
  /// A step in metrics.jsonl, or results. A run that failed before its first step has neither: a
  /// fresh run overwrites its files.
  bool holds_run() const;
  bool holds_results() const;  ///< a checkpoint, or the summary of a run without any
  void remove_existing() const;
  void set_aside_later(int64_t step);
  void unfinish_summary() const;

  std::filesystem::path root_;
  bool writes_;
  bool replaces_ = false;   ///< `begin` removes an earlier run
  bool continues_ = false;  ///< a checkpoint of this directory is resumed
  std::optional<io::RunLock> lock_;
  std::optional<std::filesystem::path> resume_file_;
  std::optional<Attempt> earlier_;
  std::optional<io::MetricsWriter> metrics_;
  std::optional<io::EventWriter> events_;
  std::vector<std::string> notes_;
};

}  // namespace espalier::train
