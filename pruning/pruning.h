#pragma once
// Who decides the mask. Read this first.
//
//   magnitude   keep the largest |value|, exactly round((1 - sparsity) n) elements
//   random      the same count, drawn by Philox from (seed, parameter name, position)
//   nm          keep N of every M consecutive elements along the last axis, the largest (sparsity = 1 - N/M)
//   block       keep whole b x b blocks of the matrix view, those with the largest mean norm
//   none        keep what is kept now
//   rigl, set   masks that move while training goes on: drop_grow.h
//
// A method is a pure function of (candidates, settings): no state, no threads, the same bits on
// every rank; ranks compare `digest` of what they got. Except where masks move, a pruned element
// never comes back: every new mask is a subset of the current one. Ties keep the earlier parameter,
// then the lower position.
//
//   schedule.h   when to prune, and how far (one-shot, cubic); when masks move, and how much
//   prunable.h   which parameters may be pruned
//   report.h     density by parameter
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

/// A prunable parameter as a method sees it. `index` must outlive the call.
struct Candidate {
  std::string name;
  Shape shape;
  const sparse::Index* index = nullptr;  ///< kept now, over shape.count() elements
  std::span<const float> values;         ///< of the kept elements, packed, [index->kept()]
};

/// Over what the share of `sparsity` is counted: all candidates together, or each one alone.
enum class Scope : uint8_t { global, layer };
std::string_view name_of(Scope scope);
/// Throws Failure that lists the names.
Scope scope_by_name(std::string_view name);

/// Norm of a block, divided by what it would be for ones, so that partial blocks at the edge
/// compare.
enum class BlockNorm : uint8_t { l1, l2 };

/// Candidates of other ranks, which compete with those here in global scope (stages of a pipeline).
/// All have numbers in forward order. Every rank gets the masks that one rank with all candidates
/// would, of its own; it takes part even if it has none.
struct Competition {
  size_t candidates = 0;                        ///< of all ranks
  std::vector<size_t> mine;                     ///< numbers of those here, ascending
  std::function<void(std::span<int64_t>)> sum;  ///< adds over all ranks
  /// What each rank gave, in order of ranks.
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

using Function = Result (*)(std::span<const Candidate>, const Settings&);

struct Method {
  std::string_view name;
  Function run = nullptr;
  bool needs_values = true;  ///< false: `Candidate::values` may be empty
};

/// All methods of this build.
std::span<const Method> methods();
/// Throws Failure that lists the names.
const Method& method_by_name(std::string_view name);

/// Runs `settings.method`. Throws Failure for settings out of range and for a NaN value (naming the
/// parameter); in layer scope also for a parameter too small to keep anything. O(n) time; memory:
/// the masks and 0.5 MiB (block: 28 bytes a block, and a sort of the blocks).
Result prune(std::span<const Candidate> candidates, const Settings& settings);

/// Throws Failure unless 0 <= sparsity < 1.
void check_sparsity(double sparsity);
/// round((1 - sparsity) size): how many elements magnitude and random keep of `size`.
int64_t kept_count(int64_t size, double sparsity);

/// Digest of all masks in order (sizes and bits): ranks whose digests agree hold the same masks.
uint64_t digest(std::span<const sparse::Mask> masks);

/// A dense parameter from a file that holds zeros where it was pruned.
struct DenseValues {
  std::string name;
  std::span<const float> values;
};
/// Keeps what is neither +0 nor -0. Throws Failure naming the parameter that holds a NaN.
std::vector<sparse::Mask> masks_from_dense_zeros(std::span<const DenseValues> parameters);

}  // namespace espalier::pruning
