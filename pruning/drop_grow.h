#pragma once
// Drop and grow: masks that move during training, at a constant number of kept elements.
//
//   start   random, with a density per layer: uniform, or Erdős-Rényi-kernel
//   drop    in each layer the k kept elements with the smallest |value|
//   grow    k of the elements outside the remaining mask (Moving::grow): those with the largest
//           |gradient| relative to their row and column (rigl), or drawn from (seed, step, name,
//           position) (set)
//
// Masks of blocks move in the same way, as matrices of blocks with root mean squares of values and
// gradients. In N:M masks each group grows by as many elements as it lost.
//
// An element that was just dropped may be grown again at once; it then keeps value and moments.
// Ties keep the lower position. k = round(fraction · kept), with the fraction of schedule.h. Every
// function is pure: the same bits on all ranks. O(size) time, 512 KiB.
// Sources: Evci et al., "Rigging the lottery", ICML 2020, algorithm 1 and section 3; Mocanu et al.,
// "Scalable training of artificial neural networks with adaptive sparse connectivity", 2018.
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "pruning/registry.h"

namespace espalier::pruning {

/// The distribution of the kept elements of a random start over layers.
enum class Distribution : uint8_t {
  uniform,  ///< the same density for all
  erk,      ///< density proportional to (sum of sizes) / (product of sizes), at most 1
};
/// Throws Failure that lists the names.
Distribution distribution_by_name(std::string_view name);

/// Kept elements per shape; their sum is round((1 - sparsity) · all elements).
std::vector<int64_t> start_counts(std::span<const Shape> shapes, double sparsity,
                                  Distribution distribution);
/// Applies method `random` to each candidate alone, with these counts.
Result random_start(std::span<const Candidate> candidates, const Settings& settings,
                    Distribution distribution);

/// round(fraction · kept), 0 <= fraction <= 1.
int64_t drop_count(int64_t kept, double fraction);
/// A mask of the `keep` elements of `now` with the largest |value|. `values`: of the elements of
/// `now`, packed.
sparse::Mask drop_to(const sparse::Mask& now, std::span<const float> values, int64_t keep);

/// A layer between drop and grow.
struct Dropped {
  sparse::Mask mask;
  std::vector<int64_t> counts;  ///< to grow: elements, or blocks of each part (block_grid.h)

  bool grows() const;
};
/// Drops down to as many elements or blocks as `target` has, and `fraction` of those.
/// `shape`: the groups or blocks that form every mask. Throws Failure naming the parameter if it
/// holds a NaN. Blocks are kept as a whole (check_blocks).
Dropped drop(const Candidate& candidate, const sparse::Mask& target, double fraction,
             const sparse::IndexShape& shape);
/// Grows the layer in `dropped.mask`. `growth` has seed, step and gradient.
void grow(const Moving& kind, Growth growth, const Candidate& candidate,
          const sparse::IndexShape& shape, Dropped& dropped);

/// Throws Failure naming the parameter if the mask keeps some blocks in part.
void check_blocks(const Candidate& candidate, const sparse::Mask& mask, int64_t edge);

// Moving::grow:
void grow_by_gradient(const Growth& growth, sparse::Mask& mask);
/// A pure function of (seed, step, name, mask): each pruned element is equally likely.
void grow_at_random(const Growth& growth, sparse::Mask& mask);

}  // namespace espalier::pruning
