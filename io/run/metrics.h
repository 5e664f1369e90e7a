#pragma once
// The files of a run directory that report its progress: metrics.jsonl (one JSON object a step,
// flushed line by line), summary.json and other small JSON files (replaced atomically), trace.json
// (Chrome trace events: one process a rank, one thread a track), and .lock. Formats:
// docs/formats.md.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "src/core/trace.h"

namespace espalier::io {

class MetricsWriter {
 public:
  /// Starts an empty file, or with `resumed_step` >= 0 keeps the lines of steps up to it, so that
  /// each step stands once; a torn last line (from a crash) is dropped.
  explicit MetricsWriter(std::filesystem::path path, int64_t resumed_step = -1);

  /// `line` is an object with an integer "step". A NaN or infinity is written as null.
  void write(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// Every whole line of a metrics.jsonl; a torn last line is ignored, any other bad line throws
/// Failure.
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path);

/// Temporary file, fsync, rename.
void write_text_atomically(const std::filesystem::path& path, std::string_view text);
void write_json_atomically(const std::filesystem::path& path, const nlohmann::ordered_json& json);

struct RankTrace {
  int rank = 0;
  std::span<const TraceEvent> events{};
  double clock_offset = 0;  ///< added to the rank's seconds to get the common clock
};
void write_trace(const std::filesystem::path& path, std::span<const RankTrace> ranks);

/// Holds RUN/.lock (flock) while it lives; the folder is made when missing. A second holder gets a
/// Failure that names the directory, the PID of the first and the fix.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_directory);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

 private:
  int file_ = -1;
};

}  // namespace espalier::io
