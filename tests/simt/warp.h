#pragma once
// Lanes of one warp that meet to exchange values. A lane arrives with a mask of lanes. When all of
// these have arrived, each gets its result.
#include <cstdint>
#include <string>

#include "tests/simt/engine.h"

namespace espalier::simt {

struct LaneCall {
  WarpOp op = WarpOp::sync;
  unsigned mask = 0;
  uint64_t value = 0;
  unsigned argument = 0;
  int width = 32;
  Together work = nullptr;  ///< of WarpOp::together, with what the lane brings
  void* mine = nullptr;
};

class WarpMeeting {
 public:
  /// The last warp of a block may have fewer than 32 lanes.
  explicit WarpMeeting(int lanes) : present_(lanes == 32 ? ~0U : (1U << lanes) - 1) {}

  /// The set of lanes whose results are ready, including this one; 0: this lane must wait.
  unsigned arrive(int lane, const LaneCall& call);
  void leave(int lane);
  uint64_t result(int lane) const { return results_[lane]; }
  /// The broken rule; empty: none.
  const std::string& wrong() const { return wrong_; }

 private:
  uint64_t value_for(int lane);
  void meet(unsigned mask);
  void work_together();

  unsigned present_;
  unsigned arrived_ = 0;
  LaneCall calls_[32];
  uint64_t results_[32] = {};
  std::string wrong_;
};

}  // namespace espalier::simt
