#pragma once
// A run directory (contract: docs/formats.md): lock, resolved config, metrics.jsonl, checkpoints/,
// summary.json, trace.json. Rank 0 writes it; other ranks know the paths only.
#include <filesystem>
#include <optional>

#include "io/config/config.h"
#include "io/run/metrics.h"
#include "parallel/transport/communicator.h"

namespace espalier::train {

class RunDirectory {
 public:
  /// Collective. Rank 0 takes the lock and selects the start of the run from `resume`:
  ///   ""      fresh; Failure if the directory holds a run
  ///   "none"  fresh; `begin` removes an earlier run
  ///   "auto"  the newest checkpoint in the directory; fresh if there is none
  ///   FILE    that checkpoint
  RunDirectory(const std::filesystem::path& root, const std::string& resume,
               parallel::Communicator& comm);

  const std::filesystem::path& root() const { return root_; }
  /// The checkpoint to resume from.
  const std::optional<std::filesystem::path>& resume_file() const { return resume_file_; }
  std::filesystem::path checkpoint_path(int64_t step) const;
  std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }

  /// Rank 0: removes an earlier run that this one replaces, writes config.toml and opens
  /// metrics.jsonl, kept up to `resumed_step` (-1: empty).
  void begin(const io::Config& config, int64_t resumed_step);
  /// Rank 0 writes one line; other ranks do nothing.
  void write_metrics(const nlohmann::ordered_json& line);

 private:
  void decide(const std::string& resume);
  void refuse_existing() const;
  void remove_existing() const;

  std::filesystem::path root_;
  bool writes_;
  bool replaces_ = false;  ///< `begin` removes an earlier run
  std::optional<io::RunLock> lock_;
  std::optional<std::filesystem::path> resume_file_;
  std::optional<io::MetricsWriter> metrics_;
};

}  // namespace espalier::train
