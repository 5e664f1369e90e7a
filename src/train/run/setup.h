#pragma once
// Sets up one rank of a run: opens data and run directory, plans, builds the stage, loads weights
// and state, connects the ranks. All ranks set up together.
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "io/config/config.h"
#include "io/data/fingerprint.h"
#include "parallel/transport/communicator.h"
#include "src/kernels/backend.h"
#include "src/kernels/operation_times.h"
#include "src/train/checkpoint/manifest.h"
#include "src/train/checkpoint/run_directory.h"
#include "src/train/masks/pruner.h"
#include "src/train/run/loss_scale.h"
#include "src/train/run/pipeline.h"
#include "src/train/run/run_plan.h"
#include "src/train/run/source.h"

namespace espalier::train {

struct TrainerOptions {
  std::string resume;                         ///< see RunDirectory
  std::string init;                           ///< file of weights and masks to start from
  int64_t stop_after = 0;                     ///< end after this step of the run; 0: train.steps
  std::string git;                            ///< of the program, for the manifest and summary.json
  std::vector<std::string> accepted;          ///< changes of a resumed run (manifest.h)
  const kernels::Kernels* kernels = nullptr;  ///< instead of run.backend's
  /// False: checkpoints in the background are written by calls after each step, so that the order
  /// of all events is determined (simulations).
  bool background_thread = true;
  std::filesystem::path system_root = "/";  ///< of proc and sys, for limits (host_memory.h)
  std::function<bool()> stop_requested;     ///< polled once per step
  std::function<void(const struct StepReport&)> on_step;  ///< after each step
  std::function<void(const std::string&)> on_note;        ///< messages for the user, of every rank
};

/// Parameters of all stages.
struct Totals {
  int64_t size = 0, kept = 0;
  Sparsity sparsity;  ///< of the prunable ones
};

// One rank of a run: the components that `set_up` makes, one group after the other. Each group
// refers to earlier ones.

struct RunFiles {
  std::unique_ptr<RunDirectory> directory{};
  Manifest manifest{};
  io::FileStamps data{};  ///< of the files that training reads, since before their fingerprints
};

struct RunInputs {
  std::unique_ptr<Source> source{};
  std::unique_ptr<kernels::OperationTimes> operation_times{};  ///< null unless they are measured
  std::unique_ptr<kernels::Backend> backend{};
  std::map<std::string, std::string> model_texts{};  ///< of the checkpoint that it started from
};

struct RunPlace {
  std::unique_ptr<const RunPlan> plan{};
  std::unique_ptr<Ranks> ranks{};
};

struct RunModel {
  std::unique_ptr<Stage> stage{};
  std::unique_ptr<Pruner> pruner{};
  int64_t step = 0;            ///< steps done or enqueued
  int64_t resumed_step = -1;   ///< of the checkpoint that the run resumed from; -1: none
  bool starts_pruned = false;  ///< the pruning before the first step is done
};

struct RunLinks {
  std::unique_ptr<PipelineReduction> pipeline_reduction;
  std::unique_ptr<DataParallel> data_parallel;
  std::unique_ptr<Pipeline> pipeline;
  LossScale loss_scale;
};

struct Run : RunFiles, RunInputs, RunPlace, RunModel, RunLinks {
  parallel::Communicator& comm;
  std::function<void(const std::string&)> note;  ///< messages for the user
  MemoryPlan planned;       ///< of this rank, with the storages that were chosen
  bool copies_checkpoints;  ///< they are written from a copy, while training goes on; the same on
                            ///< all ranks
  Totals totals;

  const io::Config& config() const { return plan->config; }
  /// Throws Failure if the data are no longer those of the manifest. Cost: a stat per file, and
  /// reading the data if one was touched.
  void check_data();
  /// Sums the parameters of all stages. Collective over the pipeline.
  void count_totals();
};

/// Collective. Throws Failure if the run cannot start.
Run set_up(const io::Config& config, parallel::Communicator& comm, const TrainerOptions& options);

}  // namespace espalier::train
