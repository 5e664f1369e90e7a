#pragma once
// The grid of ranks: pipeline stages × data-parallel replicas. Pure arithmetic, constexpr.
//
//   rank = stage * data + replica
//
// Replicas of a stage are neighbours, so that all-reduce stays inside machines.
#include <span>
#include <string>

#include "src/core/error.h"

namespace espalier::parallel {

struct GridPlace {
  int stage = 0;    ///< 0 … pipeline - 1
  int replica = 0;  ///< 0 … data - 1
  bool operator==(const GridPlace&) const = default;
};

struct Grid {
  int pipeline = 1;  ///< stages
  int data = 1;      ///< replicas of each stage

  constexpr int ranks() const { return pipeline * data; }
  constexpr GridPlace place_of(int rank) const { return {rank / data, rank % data}; }
  constexpr int rank_of(GridPlace at) const { return at.stage * data + at.replica; }
  bool operator==(const Grid&) const = default;
};

/// `ranks` ranks in `pipeline` stages; throws Failure naming the fix unless `ranks` is divisible.
Grid make_grid(int ranks, int pipeline);

/// One line a machine, for logs: "node 0: rank 0 (stage 0, replica 0), …". `node` [ranks].
std::string describe(const Grid& grid, std::span<const int> node);

}  // namespace espalier::parallel
