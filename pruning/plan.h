#pragma once
// Facts of a run's pruning that follow from its config: checks, keys that it reads, steps, counts
// of kept elements, first masks, and the heap of a change.
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "pruning/pruning.h"
#include "pruning/schedule.h"
#include "pruning/work.h"

namespace espalier::pruning {

/// Throws Failure for settings that do not fit together, or not to the run.
void validate(const io::PruningConfig& config, const RunFacts& run);
/// Throws Failure if nothing would be pruned before the run of `steps` ends.
void check_in_time(const io::PruningConfig& config, int64_t steps);
/// Whether the method reads a key of [pruning], or an option of `espalier prune` ("seed",
/// "calibration"), with these settings.
bool reads_key(const io::PruningConfig& config, std::string_view key);

/// Float arrays of each prunable element that the method keeps over the run.
int arrays_of(const io::PruningConfig& config);
/// The groups or blocks that form every mask; zeros: single elements.
sparse::IndexShape shape_of(const io::PruningConfig& config);
/// Whether the method itself makes masks that are not of whole blocks.
bool makes_single_elements(const io::PruningConfig& config);

/// The steps after which masks shrink, ascending; 0: before the first step.
std::vector<int64_t> pruning_steps(const io::PruningConfig& config);
/// Whether masks may change after one of the steps `step` … `end` of a run of `steps`.
bool may_change(const io::PruningConfig& config, int64_t step, int64_t end, int64_t steps);

/// The parameters of a network, in forward order.
struct Network {
  std::span<const sparse::ParameterSpec> specs;
  std::vector<bool> prunable;
};
/// Kept elements of each parameter after pruning at `step`; in global scope an even share. Never
/// more than `now`. `in_file`: those of pruning.file.
std::vector<int64_t> kept_after(const io::PruningConfig& config, const Network& network,
                                int64_t step, std::vector<int64_t> now,
                                const std::function<std::vector<int64_t>()>& in_file);

/// How the masks of a dense network are made before its weights are.
struct FirstMasks {
  bool alone = false;         ///< each parameter's mask depends on that parameter alone
  bool reads_values = false;  ///< reads Candidate::values
  std::function<std::vector<sparse::Mask>(std::span<const Candidate> candidates)> make;
};
/// None: the method has none before the first step, or needs more than initial values of one
/// parameter at a time.
std::optional<FirstMasks> first_masks(const io::PruningConfig& config, uint64_t seed);

/// A mask for measurements before the run has one, with about `kept` elements of a parameter of
/// this shape. Its structure is the method's: N:M groups (any `kept` below the full size gives
/// N:M), blocks, or else random single elements. Deterministic. O(size) time.
sparse::Mask example_mask(const io::PruningConfig& config, const sparse::ParameterSpec& spec,
                          int64_t kept);

// Plans of heap, for a dry store before the change (Arena::note_heap).

/// Plans passes that show dense gradients, while so many bytes are in use beside their sums.
using PlannedGradients = std::function<void(sparse::Store::Probed probed, size_t bytes)>;
/// One pruning.
void plan_pruning(const io::PruningConfig& config, const sparse::Store& store,
                  const PlannedGradients& gradients);
/// One move of masks; false: the method's masks do not move.
bool plan_move(const io::PruningConfig& config, const sparse::Store& store,
               const PlannedGradients& gradients);
void plan_history(const io::PruningConfig& config, const sparse::Store& store);
/// Whether the method keeps earlier masks during the run.
bool keeps_history(const io::PruningConfig& config);

}  // namespace espalier::pruning
