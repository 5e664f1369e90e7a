#pragma once
// The resolved plan of a run: all decisions made before memory is allocated. It is computed once
// and never changed. Every rank computes the same plan, except for its own place.
#include <filesystem>
#include <functional>
#include <span>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "src/kernels/backend.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/masks/initial_masks.h"
#include "src/train/memory/planner.h"
#include "src/train/run/pipeline.h"
#include "src/train/stage/layout.h"

namespace espalier::train {

struct RunPlan : Plan {
  /// As read, with parallel.pipeline, schedule and partition resolved.
  io::Config config;
  ProblemShape problem;
  StageLink stage_link;
  Owners owners;  ///< of all parameters

  // Of this rank:
  std::vector<PartShape> parts;
  std::vector<size_t> parameters;            ///< in forward order of the network
  std::vector<sparse::ParameterSpec> specs;  ///< of the whole network
  int64_t first_sample = 0;                  ///< of its replica, in a global batch
  /// Its memory with other storages than those planned for storage "auto" (plan_with_storages).
  /// For set-up only: it reads layers, start, teacher and backend of the PlanSources.
  std::function<MemoryPlan(const std::map<std::string, std::string>& storages)> with_storages;

  int64_t micro_batch() const { return fit.choice.micro_batch; }
  /// Predictions per global batch; `problem.rows` is the number per sample.
  int64_t rows_per_step() const { return config.train.global_batch * problem.rows; }
};

/// Inputs of a plan in addition to the config.
struct PlanSources {
  const ProblemShape& problem;
  std::span<const std::unique_ptr<model::Layer>> layers;  ///< of the network, not bound
  const InitialMasks& start;
  kernels::Backend& backend;
  const TeacherFile* teacher = nullptr;     ///< null: none
  const RunProgress* resumed = nullptr;     ///< the checkpoint to resume from
  std::filesystem::path system_root = "/";  ///< of proc and sys, for limits (host_memory.h)
};

/// Collective. Times layers and links as far as the config needs it. Throws Failure, with the fix,
/// if the run does not fit ranks or memory.
RunPlan plan_run(const io::Config& config, const PlanSources& sources, parallel::Communicator& comm,
                 const std::function<void(const std::string&)>& note);

}  // namespace espalier::train
