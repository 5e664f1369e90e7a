#pragma once
// The parts of candidates: matrices that lie in one parameter because one product computes them,
// such as queries, keys and values. Methods with scores prune them apart in layer scope: before the
// first step the gradients of queries and keys are far smaller than those of values, so that one
// threshold for all three keeps no query and no key.
//
// Memory: a mask and a bitmap of each candidate that has parts.
#include <deque>
#include <span>
#include <vector>

#include "pruning/candidate.h"

namespace espalier::pruning {

class Parts {
 public:
  /// `whole` must outlive it. Throws Bug unless rows are a multiple of Candidate::parts.
  explicit Parts(std::span<const Candidate> whole);
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  /// Every part of every candidate, in order.
  std::span<const Candidate> candidates() const { return candidates_; }
  /// The masks of the whole candidates, from those of the parts.
  std::vector<sparse::Mask> joined(std::vector<sparse::Mask> masks) const;

 private:
  void split(const Candidate& whole);

  std::span<const Candidate> whole_;
  Arena arena_;
  std::deque<sparse::Index> indices_;  ///< addresses stay
  std::vector<Candidate> candidates_;
};

}  // namespace espalier::pruning
