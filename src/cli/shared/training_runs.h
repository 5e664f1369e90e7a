#pragma once
// Trainings that a command starts, some at a time, each with a config and a directory of its own:
// sweep.toml there is its config, log.txt its console output. The same command again continues:
// finished runs are not repeated, others resume from their checkpoints. After a stop signal the
// runs save and end; a second one ends runs that hang.
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "io/run/metrics.h"
#include "src/train/checkpoint/manifest.h"

namespace espalier::cli {

struct TrainingRun {
  io::Config config;         ///< run.out: its directory
  train::Manifest inputs{};  ///< of its files, when the command began

  std::filesystem::path directory() const { return config.run.out; }
};

struct TrainingResult {
  std::optional<double> loss;  ///< last validation loss
  std::optional<double> rate;  ///< tokens, or images, per second
  bool of_images = false;
  std::string error;  ///< of a run without a loss
};

class TrainingRuns {
 public:
  /// `launcher`: the command line before each espalier; `options`: more ones of `espalier train`.
  TrainingRuns(std::filesystem::path folder, const std::string& launcher, int jobs,
               std::vector<std::string> options = {});

  bool launches_ranks() const { return !launcher_.empty(); }
  /// Throws Failure if the folder is no place for runs.
  void check_folder() const;
  /// Throws Failure unless each directory holds a run of the same config and files, or none.
  static void check_runs(std::span<const TrainingRun> runs);
  /// Makes and locks the folder; from now on stop signals end `train`.
  void begin();
  /// Trains those that are not finished. Results in their order; none after a stop signal, which a
  /// note says.
  std::optional<std::vector<TrainingResult>> train(std::span<const TrainingRun> runs) const;

 private:
  std::vector<std::string> command(const TrainingRun& run) const;

  std::filesystem::path folder_;
  std::vector<std::string> launcher_, options_;
  int jobs_;
  std::optional<io::RunLock> lock_;
};

}  // namespace espalier::cli
