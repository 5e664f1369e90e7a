#pragma once
// What a rank of a run needs, before anything is allocated, and the choices that make it fit
// train.memory_budget.
//
// A plan replays the run on a dry arena: the store as it starts (start.h), a step, each change of
// masks with both layouts alive, a step again. So it counts what the arena will count; kernels'
// workspace is the bound that the "dry" table states, or of a device what its kernels ask for.
// Beside the arena a process needs kProgram, and copies of single parameters while they are drawn,
// saved or moved: `beside`. Of a device the plan is that of its memory; what the host holds pinned
// is told apart.
#include <array>
#include <memory>
#include <optional>

#include "io/config/config.h"
#include "src/kernels/backend.h"
#include "src/train/masks/start.h"
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
/// "weight 1.5 MiB, gradient 1.00 GiB": what is not empty.
std::string needs_text(const MemoryByKind& bytes);
std::string size_text(size_t bytes);
/// weight + gradient + master + moment + index
size_t model_state_of(const MemoryByKind& bytes);

/// What one rank of a pipeline holds.
struct StageShape {
  int rank = 0;  ///< of the pipeline
  std::optional<Layout> layout{};
  std::vector<PartShape> parts{};  ///< empty: all layers
  Start start;
  /// Of all buffers for what goes between stages, where kernels compute and on the host; without a
  /// device there is one memory.
  struct Messages {
    size_t beside_kernels = 0, on_host = 0;
  } messages{};
  std::vector<std::string> exclude{};  ///< parameters that config.pruning.exclude means
};

/// What a plan depends on beside the config.
struct RunShape {
  ProblemShape problem;
  int ranks = 1;  ///< replicas, which share the batch
  int threads = 1;
  kernels::Planning place{};  ///< whose memory and workspace are planned
  Start start;                ///< of all parameters
  std::shared_ptr<sparse::Sharding> sharding{};
  bool reduces_on_device = false;  ///< gradients of replicas go from device to device
  int replica = 0;                 ///< whose slices of them are planned
  /// Of a pipeline: the ranks' stages when a rank's share of the batch has so many micro-batches.
  /// Throws Failure when the schedule cannot use these. Empty: one stage.
  std::function<std::vector<StageShape>(int64_t micro_batches)> stages{};
};

/// What may be chosen to save memory: the losses of a run do not depend on it.
struct PassChoice {
  int64_t micro_batch = 1;
  model::Recompute recompute = model::Recompute::none;
  bool operator==(const PassChoice&) const = default;
};

struct MemoryPlan {
  MemoryByKind start{};  ///< in the first steps
  MemoryByKind last{};   ///< after the last change of masks
  MemoryByKind peak{};
  MemoryByKind pinned{};  ///< of the host beside a device, at its peak
  size_t beside = 0;
  sparse::StateParts parts;  ///< of `last`
  PassCost pass;
  int64_t total_size = 0, total_kept = 0;  ///< parameters; kept after the last change

  /// Of the process, or on a device of that, at its peak.
  size_t needed() const { return sum_of(peak) + beside; }
};

MemoryPlan plan_stage(const io::Config& config, const RunShape& run, const StageShape& stage,
                      const PassChoice& choice);
/// Of a pipeline: that of the rank which needs most.
MemoryPlan plan_memory(const io::Config& config, const RunShape& run, const PassChoice& choice);

struct Fit {
  PassChoice choice;
  /// [ranks of a pipeline] less than choice.recompute where a rank's stages need not; empty: all
  /// the same.
  std::vector<model::Recompute> by_rank;
  MemoryPlan plan;
  size_t budget = 0;  ///< bytes; 0: no limit
  std::string note;   ///< what was chosen because of the budget; empty: nothing

  model::Recompute recompute(int rank) const {
    return by_rank.empty() ? choice.recompute : by_rank[static_cast<size_t>(rank)];
  }
  /// For Arena::set_limit.
  size_t arena_limit() const { return budget == 0 ? 0 : budget - plan.beside; }
};

/// A rank's sequences of a global batch. Throws Failure when the ranks cannot share it evenly.
int64_t share_of(const io::Config& config, int ranks);

/// The first that fits, in this order: recompute none, selective, full (one alone unless
/// train.recompute = "auto"), and for each the largest micro_batch that divides the share (unless
/// it is set). Without a budget: the first. Of a pipeline the rank that needs most decides, and the
/// others recompute no more than they must. Throws Failure when nothing fits, with the bytes by
/// category, the least that could do, and what to change.
Fit fit_memory(const io::Config& config, const RunShape& run);

/// What the user could change so that a rank needs no more than `bytes`, most effective first: only
/// what is not so already, each with what the plan says of it; where none is enough, with all of
/// them together.
std::string ways_to_fit(const io::Config& config, const RunShape& run, const PassChoice& choice,
                        size_t bytes);

/// Throws Failure, with the bytes by category and ways_to_fit, when the plan needs more than the
/// `available` bytes of the device's memory. Else what to say should memory run out all the same.
std::string check_device(const io::Config& config, const RunShape& run, const Fit& fit,
                         size_t available);

}  // namespace espalier::train
