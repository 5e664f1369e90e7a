#pragma once
// Pruning selects the elements of a parameter that are kept (its mask). Files of this folder:
//
//   registry.h   the methods by name, each of one of four kinds
//   work.h       a method at work in a run; its kinds are in kinds/
//   plan.h       facts of a run that follow from its config: steps, counts, memory
//   drop_grow.h  masks that move during training (rigl, set)
//   schedule.h   steps and targets of pruning (one-shot, cubic) and of moving masks
//   early_bird.h  masks that are drawn once they no longer change
//   selection.h  the k largest of many keys, exactly
//   parts.h      matrices that one product computes together, as candidates of their own
//   inverse_factor.h  the triangular factor of an inverse (sparsegpt)
//
// A method is a pure function of (candidates, settings): no state, no threads, and the same bits on
// every rank; ranks compare digests of their masks. Without moving masks, a pruned element stays
// pruned: every new mask is a subset of the current one. Of equal keys the earlier parameter is
// kept first, then the lower position.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/index/index.h"
#include "sparse/index/mask.h"
#include "sparse/store/store.h"
#include "src/core/types.h"

namespace espalier::pruning {

/// A prunable parameter. `index` must outlive the call.
struct Candidate {
  std::string name;
  Shape shape;
  const sparse::Index* index = nullptr;  ///< current mask, over shape.count() elements
  std::span<const float> values{};       ///< of the kept elements, packed, [index->kept()]
  std::span<const float> scores{};       ///< like `values`, for methods that score (registry.h)
  int64_t parts = 1;  ///< matrices along the rows, such as queries, keys and values (parts.h)
};

/// The set in which elements compete: all candidates together, or each candidate alone (with
/// scores, each part of it).
enum class Scope : uint8_t { global, layer };
/// Throws Failure that lists the names.
Scope scope_by_name(std::string_view name);

/// Candidates of other ranks (stages of a pipeline), which compete with the local ones in global
/// scope. Candidates are numbered in forward order. Each rank gets the masks of its own candidates
/// that one rank with all candidates would compute. Ranks without candidates take part, too.
struct GlobalSelection {
  size_t candidates = 0;                        ///< of all ranks
  std::vector<size_t> mine;                     ///< numbers of the local ones, ascending
  std::function<void(std::span<int64_t>)> sum;  ///< adds over all ranks
  /// Returns the contributions of all ranks, by rank.
  std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte>)> gather;
};

struct Settings {
  std::string method = "magnitude";
  double sparsity = 0;  ///< zeros / prunable elements, in [0, 1); nm uses n and m instead
  Scope scope = Scope::global;
  uint64_t seed = 1;                                  ///< random
  int n = 2, m = 4;                                   ///< nm
  int block = 16;                                     ///< block: rows and columns of one block
  const GlobalSelection* global_selection = nullptr;  ///< null: all candidates are local
};

struct Result {
  std::vector<sparse::Mask> masks;  ///< one per candidate, in order
  std::vector<std::string>
      warnings;  ///< for the user: a parameter left empty, a target already passed
};

/// Runs `settings.method`. Throws Failure for settings out of range and for a NaN value (naming the
/// parameter); in layer scope also for a parameter too small to keep an element. O(n) time. Memory:
/// the masks and 512 KiB (block: 28 bytes per block, and a sort of the blocks).
Result prune(std::span<const Candidate> candidates, const Settings& settings);

/// Throws Failure unless 0 <= sparsity < 1.
void check_sparsity(double sparsity);
/// round((1 - sparsity) size): number of elements that magnitude and random keep.
int64_t kept_count(int64_t size, double sparsity);

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
