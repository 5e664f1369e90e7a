#pragma once
// A run that was made, and its measurements beside a prediction.
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/planner/checkpoints.h"

namespace espalier::planner {

/// Numbers of metrics.jsonl are medians over its settled steps (io/run/metrics.h).
struct MeasuredRun {
  std::string name;   ///< of its directory
  io::Config config;  ///< with the run's stages, micro-batch, recompute, storages and backend
  int ranks = 1;
  size_t steps = 0;  ///< that the medians are over
  /// Seconds. The parts are rank 0's; none of a run on a GPU, which enqueues them.
  double step = 0;
  std::optional<double> compute, waiting, reduction, update;
  std::optional<double> memory;              ///< bytes: peak of the arena of the fullest rank
  std::optional<double> checkpoint;          ///< bytes of the newest file
  std::map<std::string, double> operations;  ///< seconds a step of rank 0 (run.operation_times)
};

/// `overrides`: of the config. Throws Failure that names the file and the fix if the directory has
/// no config.toml, summary.json or metrics.jsonl of a run with steps.
MeasuredRun read_measured_run(const std::filesystem::path& directory,
                              std::span<const std::string> overrides);

struct Compared {
  enum class Unit : uint8_t { seconds, bytes };
  std::string name;
  Unit unit = Unit::seconds;
  double predicted = 0;
  std::optional<double> measured{};
  bool operation = false;  ///< by name; else a part of the step
};

/// The step, its parts and operations on rank 0 (`first`), the memory of the fullest rank, and the
/// size of a checkpoint if the run wrote one.
std::vector<Compared> compare(const StepPrediction& step, const PlannedRank& first,
                              const std::optional<CheckpointPrediction>& checkpoints,
                              const MeasuredRun& run);

}  // namespace espalier::planner
