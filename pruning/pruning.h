#pragma once
// Pruning selects the elements of a parameter that are kept (its mask). Files of this folder:
//
//   candidate.h  what methods read and return
//   registry.h   the methods by name, each of one of four kinds
//   work.h       a method at work in a run; its kinds are in kinds/
//   plan.h       facts of a run that follow from its config: steps, counts, memory
//   drop_grow.h  masks that move during training (rigl, set)
//   regrowth.h   masks that grow at the end of a run (dense_from_step)
//   schedule.h   steps and targets of pruning (one-shot, cubic) and of moving masks
//   early_bird.h  masks that are drawn once they no longer change
//   selection.h  the k largest of many keys, exactly
//   parts.h      matrices that one product computes together, as candidates of their own
//   inverse_factor.h  the triangular factor of an inverse (sparsegpt)
//
// A method is a pure function of (candidates, settings): no state, no threads, and the same bits on
// every rank; ranks compare digests of their masks. Without moving masks and regrowth, a pruned
// element stays pruned: every new mask is a subset of the current one. Of equal keys the earlier
// parameter is kept first, then the lower position.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pruning/candidate.h"

namespace espalier::pruning {

/// Runs `settings.method`. Throws Failure for settings out of range and for a NaN value (naming the
/// parameter); in layer scope also for a parameter too small to keep an element. O(n) time. Memory:
/// the masks and 512 KiB (block: 28 bytes per block, and a sort of the blocks).
Result prune(std::span<const Candidate> candidates, const Settings& settings);
/// Runs the settings' calibrated method. `values` may be matrix.values. Throws Failure for settings
/// out of range and for a NaN value.
Result prune_matrix(const Candidate& matrix, std::vector<double> statistic,
                    const Settings& settings, std::span<float> values);

/// Throws Bug for an inconsistent candidate, Failure for a NaN in its values or scores.
void check_candidate(const Candidate& candidate, bool needs_values, bool needs_scores = false);

/// The mask of a dense array from a file with zeros at pruned elements: keeps all elements except
/// +0 and -0. Throws Failure naming the parameter if it holds a NaN.
sparse::Mask mask_from_dense_zeros(std::string_view name, std::span<const float> values);

/// A parameter of the network, and whether the model marks it as prunable (linear weights of the
/// blocks, not embeddings, norms or biases).
struct ParameterInfo {
  std::string name;
  Shape shape;
  bool prunable = false;
};

/// Whether a glob of `exclude` matches.
bool is_excluded(std::string_view name, std::span<const std::string> exclude);

/// Flags of the network's parameters that may be pruned: the marked ones, except those that a glob
/// of `exclude` matches. Throws Failure for a pattern without a match.
std::vector<bool> prunable(std::span<const ParameterInfo> parameters,
                           std::span<const std::string> exclude);

}  // namespace espalier::pruning
