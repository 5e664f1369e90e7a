#pragma once
// Plans the memory of each rank before anything is allocated, and chooses recompute and micro-batch
// so that it fits train.memory_budget.
//
// A plan runs the code that allocates on a dry arena: the initial store (initial_masks.h), a step,
// each change of masks with both layouts alive, another step (dry_run.cpp). So it counts the same
// bytes as the arena of the run; messages between stages are computed (message_memory). The
// kernels' workspace is the bound stated by the "dry" table; on a device it is the workspace that
// the device's kernels request.
//
// In addition to the arena a process needs `outside_arena`: kProgram, and heap (Arena::note_heap)
// such as copies of single parameters while they are drawn, saved or moved. On a device the plan
// covers device memory; pinned host memory is reported separately (`pinned`).
#include <array>
#include <memory>
#include <optional>

#include "io/config/config.h"
#include "src/kernels/backend.h"
#include "src/train/masks/initial_masks.h"
#include "src/train/stage/layout.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// Code, libraries and their heaps, thread stacks, trace and file buffers.
inline constexpr size_t kProgram = size_t{64} << 20U;

using MemoryByKind = std::array<size_t, kMemoryKinds>;
/// Bytes by category, now and when their sum was largest.
MemoryByKind bytes_now(const Arena& arena);
MemoryByKind bytes_at_peak(const Arena& arena);
size_t sum_of(const MemoryByKind& bytes);
/// "weight 1.5 MiB, gradient 1.00 GiB": the non-empty categories.
std::string needs_text(const MemoryByKind& bytes);
std::string size_text(size_t bytes);
/// weight + gradient + master + moment + index
size_t model_state_of(const MemoryByKind& bytes);

/// The shape of one rank of a pipeline.
struct StageShape {
  int rank = 0;                    ///< of the pipeline
  std::optional<Layout> layout{};  ///< only of asynchronous stages
  std::vector<PartShape> parts{};  ///< empty: all layers
  std::vector<size_t> numbers{};   ///< of its parameters in the network; empty: all, in order
  InitialMasks start;
  parallel::MessageMemory messages{};  ///< between stages
  std::vector<std::string> exclude{};  ///< parameters that match config.pruning.exclude
};

/// Inputs of a plan in addition to the config.
struct RunShape {
  ProblemShape problem;
  int ranks = 1;  ///< replicas; they share the batch
  /// Of each stage, the machines of its replicas (those of several stages once, if they are equal);
  /// empty: unknown.
  std::vector<std::vector<int>> places{};
  int threads = 1;
  kernels::Planning place{};             ///< device or host whose memory and workspace are planned
  InitialMasks start;                    ///< of all parameters
  const TeacherFile* teacher = nullptr;  ///< null: none
  std::shared_ptr<sparse::Sharding> sharding{};
  bool reduces_on_device = false;  ///< gradients of replicas are reduced between devices
  int replica = 0;                 ///< replica whose slices are planned
  /// With a pipeline: the stages of its ranks if a rank's share of the batch has `micro_batches`
  /// micro-batches. Throws Failure if the schedule cannot use that number. Empty: one stage.
  std::function<std::vector<StageShape>(int64_t micro_batches)> stages{};
};

/// Choices that save memory without changing the losses of a run.
struct PassChoice {
  int64_t micro_batch = 1;
  model::Recompute recompute = model::Recompute::none;
  bool operator==(const PassChoice&) const = default;
};

struct MemoryPlan {
  MemoryByKind start{};  ///< in the first steps
  MemoryByKind last{};   ///< after the last change of masks
  MemoryByKind peak{};
  MemoryByKind pinned{};  ///< host memory pinned for a device, at its peak
  size_t outside_arena = 0;
  /// Host memory for the copy of this rank's share of a checkpoint, while it is written in the
  /// background. Not in `needed`: without room for it there is none.
  size_t checkpoint_copy = 0;
  /// Bytes that all replicas of this stage together write to a checkpoint.
  size_t checkpoint_file = 0;
  sparse::StateParts parts;  ///< of `last`
  size_t teacher = 0;        ///< model state of the teacher
  PassCost pass;
  int64_t total_size = 0, total_kept = 0;  ///< parameters; kept after the last change

  /// Peak bytes of the process; on a device, of the device's memory.
  size_t needed() const { return sum_of(peak) + outside_arena; }
};

MemoryPlan plan_stage(const io::Config& config, const RunShape& run, const StageShape& stage,
                      const PassChoice& choice);
/// With a pipeline: the plan of the rank that needs most.
MemoryPlan plan_memory(const io::Config& config, const RunShape& run, const PassChoice& choice);

struct Fit {
  PassChoice choice;
  /// [ranks of a pipeline] recompute of each rank: less than choice.recompute where the rank fits
  /// without. Empty: all ranks use choice.recompute.
  std::vector<model::Recompute> by_rank;
  MemoryPlan plan;
  size_t budget = 0;                ///< bytes; 0: no limit
  std::string note;                 ///< choices made because of the budget; empty: none
  bool copies_checkpoints = false;  ///< the budget has room for every rank's copy

  model::Recompute recompute(int rank) const {
    return by_rank.empty() ? choice.recompute : by_rank[static_cast<size_t>(rank)];
  }
  /// For Arena::set_limit.
  size_t arena_limit() const { return budget == 0 ? 0 : budget - plan.outside_arena; }
};

/// Sequences per rank of a global batch. Throws Failure if the ranks cannot share it evenly.
int64_t share_of(const io::Config& config, int ranks);

/// Returns the first choice that fits, in this order:
///   1. recompute: none, selective, full (only the given one unless train.recompute = "auto");
///   2. for each, micro_batch: the largest that divides the share (unless it is set).
/// Without a budget: the first choice. With a pipeline the rank that needs most decides; the other
/// ranks recompute no more than necessary. Throws Failure if nothing fits, with the bytes by
/// category, the smallest sufficient budget, and config changes that help.
Fit fit_memory(const io::Config& config, const RunShape& run);

/// Whether the config has checkpoints, before the end of a run, that are written from a copy.
inline bool saves_in_background(const io::Config& config) {
  return config.train.checkpoint_background && config.train.checkpoint_every > 0;
}
/// For the user: the budget has no room for so many bytes of a copy.
std::string no_copy_note(const io::Config& config, size_t copy);

/// Config changes after which a rank needs at most `bytes`, most effective first, each with its
/// planned bytes. Omits settings that are already active. If no single change suffices, adds the
/// plan of all of them together.
std::string ways_to_fit(const io::Config& config, const RunShape& run, const PassChoice& choice,
                        size_t bytes);

/// Throws Failure, with the bytes by category and ways_to_fit, if the plan needs more than the
/// `available` bytes of device memory. Otherwise returns the advice to show if memory runs out
/// during the run.
std::string check_device(const io::Config& config, const RunShape& run, const Fit& fit,
                         size_t available);

}  // namespace espalier::train
