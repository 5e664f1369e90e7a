#pragma once
// Pruning: which elements of a parameter are kept (its mask). Contents page of the folder:
//
//   registry.h   the methods by name: magnitude, random, nm, block, file, rigl, set, none
//   drop_grow.h  masks that move while training goes on (rigl, set)
//   schedule.h   when to prune and how far (one-shot, cubic); when masks move and how much
//   selection.h  the k largest of many keys, exactly
//
// A method is a pure function of (candidates, settings): no state, no threads, the same bits on
// every rank; ranks compare digests of their masks. Unless masks move, a pruned element never comes
// back: every new mask is a subset of the current one. Ties keep the earlier parameter, then the
// lower position.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/index/index.h"
#include "sparse/index/mask.h"
#include "src/core/types.h"

namespace espalier::pruning {

/// A prunable parameter. `index` must outlive the call.
struct Candidate {
  std::string name;
  Shape shape;
  const sparse::Index* index = nullptr;  ///< kept now, over shape.count() elements
  std::span<const float> values{};       ///< of the kept elements, packed, [index->kept()]
  std::span<const float> scores{};       ///< likewise, of methods that score (registry.h)
};

/// Where elements compete: among all candidates together, or within each one.
enum class Scope : uint8_t { global, layer };
/// Throws Failure that lists the names.
Scope scope_by_name(std::string_view name);

/// Norm of a block, divided by what it would be for ones, so that partial blocks at the edge
/// compare.
enum class BlockNorm : uint8_t { l1, l2 };

/// Candidates of other ranks, which compete with those here in global scope (stages of a pipeline).
/// Candidates are numbered in forward order. For its own candidates every rank gets the masks that
/// one rank with all candidates would compute. Ranks without candidates take part, too.
struct Competition {
  size_t candidates = 0;                        ///< of all ranks
  std::vector<size_t> mine;                     ///< numbers of those here, ascending
  std::function<void(std::span<int64_t>)> sum;  ///< adds over all ranks
  /// The contributions of all ranks, in order of ranks.
  std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte>)> gather;
};

struct Settings {
  std::string method = "magnitude";
  double sparsity = 0;  ///< zeros / prunable elements, in [0, 1); nm takes n and m instead
  Scope scope = Scope::global;
  uint64_t seed = 1;  ///< random
  int n = 2, m = 4;   ///< nm
  int block = 16;     ///< block: rows and columns of one block
  BlockNorm norm = BlockNorm::l2;
  const Competition* competition = nullptr;  ///< null: all candidates are here
};

struct Result {
  std::vector<sparse::Mask> masks;  ///< one a candidate, in order
  std::vector<std::string>
      warnings;  ///< for the user: a parameter left empty, a target already passed
};

/// Runs `settings.method`. Throws Failure for settings out of range and for a NaN value (naming the
/// parameter); in layer scope also for a parameter too small to keep anything. O(n) time; memory:
/// the masks and 0.5 MiB (block: 28 bytes a block, and a sort of the blocks).
Result prune(std::span<const Candidate> candidates, const Settings& settings);

/// Throws Failure unless 0 <= sparsity < 1.
void check_sparsity(double sparsity);
/// round((1 - sparsity) size): how many elements magnitude and random keep of `size`.
int64_t kept_count(int64_t size, double sparsity);

/// The mask of a dense parameter from a file that holds zeros where it was pruned: keeps what is
/// neither +0 nor -0. Throws Failure naming the parameter if it holds a NaN.
sparse::Mask mask_from_dense_zeros(std::string_view name, std::span<const float> values);

/// A parameter of the network, and whether the model marks it as prunable (linear weights of the
/// blocks, not embeddings, norms or biases).
struct ParameterInfo {
  std::string name;
  Shape shape;
  bool prunable = false;
};

/// Which parameters of the whole network may be pruned: those marked, without those that a glob of
/// `exclude` matches. Throws Failure for a pattern that matches no parameter.
std::vector<bool> prunable(std::span<const ParameterInfo> parameters,
                           std::span<const std::string> exclude);

}  // namespace espalier::pruning
