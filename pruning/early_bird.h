#pragma once
// Early-Bird tickets: the masks that pruning would draw are compared with those drawn at earlier
// checks; when they no longer change, the ticket is drawn. Source: You et al., "Drawing early-bird
// tickets", ICLR 2020 (arXiv:1909.11957), which prunes channels; here elements.
//
//   distance(A, B) = |elements in one of A and B| / (|A| + |B|)      0: equal, 1: disjoint
//   drawn when the largest distance to the masks of the last kComparedMasks checks is below
//   kStableDistance
//
// At half of the elements pruned this is the paper's Hamming distance over all elements, n. At
// sparsity s that one is at most 2 (1 - s), so that 0.1 would have no meaning at 95 %; here 0.1
// means at every sparsity that a tenth of the kept elements were others.
//
// Checks take place after the steps every, 2 every, … below to_step, so the state at any step
// follows from the step: the mask of check c (from 0) is in slot c modulo kComparedMasks.
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "io/config/config.h"
#include "sparse/index/mask.h"

namespace espalier::pruning {

/// Masks that are compared with a new one.
inline constexpr int64_t kComparedMasks = 5;
/// Masks that differ less are stable: the paper's threshold.
inline constexpr double kStableDistance = 0.1;

/// Whether masks are compared after `step`.
bool check_at(const io::PruningConfig& config, int64_t step);
/// Checks that took place before the one that `step` may have.
int64_t checks_before(const io::PruningConfig& config, int64_t step);

/// The last kComparedMasks masks of each parameter: kComparedMasks bits an element.
class MaskHistory {
 public:
  /// `parameters`: of the store; masks of those that are not prunable are empty.
  explicit MaskHistory(size_t parameters) : masks_(parameters) {}

  int64_t checks() const { return checks_; }
  /// Elements of one or the other, and of both counted twice, by slot; over all parameters. Sums
  /// over stages give the distances.
  struct Counts {
    std::array<int64_t, kComparedMasks> different{};
    std::array<int64_t, kComparedMasks> sizes{};
  };
  Counts compare(std::span<const sparse::Mask> masks) const;
  /// The largest distance; of a full history.
  static double largest_distance(const Counts& counts);
  bool full() const { return checks_ >= kComparedMasks; }
  /// Replaces the oldest masks. `prunable`: flags over the parameters.
  void add(std::span<const sparse::Mask> masks, const std::vector<bool>& prunable);

  bool has(size_t parameter) const { return !masks_[parameter].front().words().empty(); }
  /// For a checkpoint: one number for each element that `kept` keeps, whose bit b is that of the
  /// mask in slot b. Masks keep no other elements.
  std::vector<float> numbers(size_t parameter, const sparse::Mask& kept) const;
  /// The state after `checks` checks, from the numbers of a checkpoint.
  void restore(size_t parameter, const sparse::Mask& kept, std::span<const float> numbers);
  void set_checks(int64_t checks) { checks_ = checks; }

 private:
  int64_t checks_ = 0;
  std::vector<std::array<sparse::Mask, kComparedMasks>> masks_;
};

}  // namespace espalier::pruning
