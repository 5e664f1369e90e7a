#pragma once
// The files of a run directory that report its progress: metrics.jsonl (one JSON object a step,
// written line by line), summary.json and other small JSON files (replaced atomically), trace.json
// (Chrome trace events: one process a rank, one thread a track), and .lock. Formats:
// docs/formats.md.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/files/raw_file.h"
#include "src/core/trace.h"

namespace espalier::io {

class MetricsWriter {
 public:
  /// Starts an empty file, or with `resumed_step` >= 0 keeps the lines of steps up to it, so that
  /// each step stands once; lines that a crash left incomplete are dropped.
  explicit MetricsWriter(const std::filesystem::path& path, int64_t resumed_step = -1);

  /// The step of the last line that was kept; 0: none.
  int64_t last_step() const { return last_step_; }

  /// `line` is an object with an integer "step". A NaN or infinity is written as null. The line is
  /// in the file when the call returns, but on the disk only after `sync`.
  void write(const nlohmann::ordered_json& line);
  /// All lines to the disk: before a checkpoint of their step is. Another thread may write lines
  /// meanwhile.
  void sync() const { file_.sync(); }

 private:
  int64_t last_step_ = 0;
  GrowingFile file_;
};

/// Every whole line of a metrics.jsonl. A torn last line, and lines with the zeros that a loss of
/// power leaves where a write was not on the disk, are ignored. Any other bad line throws Failure.
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path);

/// The first of the steps whose medians describe a run as it is now: [result, steps) is the second
/// half of those since the last change of layout or sparsity. `changed(i)`: step i has another
/// layout or sparsity than step i - 1; called for i >= 1.
size_t settled_from(size_t steps, const std::function<bool(size_t)>& changed);
/// The same lines of a metrics.jsonl.
std::span<const nlohmann::json> settled(std::span<const nlohmann::json> lines);
/// The upper median; nothing without values.
std::optional<double> median(std::vector<double> values);

/// Temporary file, fsync, rename.
void write_text_atomically(const std::filesystem::path& path, std::string_view text);
void write_json_atomically(const std::filesystem::path& path, const nlohmann::ordered_json& json);

struct RankTrace {
  int rank = 0;
  std::span<const TraceEvent> events{};
  double clock_offset = 0;  ///< added to the rank's seconds to get the common clock
  /// [events] An object that viewers show with the event ("args"); empty: none.
  std::span<const nlohmann::ordered_json> arguments{};
};
void write_trace(const std::filesystem::path& path, std::span<const RankTrace> ranks);

/// Holds RUN/.lock (flock) while it lives; the folder is made when missing. A second holder gets a
/// retryable Failure that names the directory, the PID of the first and the fix.
///
/// A file system may drop the lock of a disconnected or suspended process. Each holder therefore
/// writes a number of its own (a fencing token) into the file, and checks it before it changes the
/// directory; a former holder throws.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_directory);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

  /// Throws Failure if the file no longer has the number of this holder.
  void check() const;
  /// Why nothing keeps other processes out (a file system without locks); empty: the lock does.
  const std::string& warning() const { return warning_; }

 private:
  void write_holder() const;

  std::filesystem::path path_;
  std::string holder_;  ///< the text of the file: "PID on HOST, holder NUMBER"
  int file_ = -1;
  std::string warning_;
};

}  // namespace espalier::io
