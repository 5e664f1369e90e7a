#pragma once
// The grid of ranks: pipeline stages × data-parallel replicas. Pure arithmetic, constexpr.
//
//   inner = data       rank = stage * data + replica      the default
//   inner = pipeline   rank = replica * pipeline + stage
//
// With inner = data, replicas of a stage are neighbours, so that all-reduce stays inside machines.
#include <span>
#include <string>

#include "src/core/error.h"

namespace espalier::parallel {

enum class Inner : uint8_t { data, pipeline };

struct GridPlace {
  int stage = 0;    ///< 0 … pipeline - 1
  int replica = 0;  ///< 0 … data - 1
  bool operator==(const GridPlace&) const = default;
};

struct Grid {
  int pipeline = 1;  ///< stages
  int data = 1;      ///< replicas of each stage
  Inner inner = Inner::data;

  constexpr int ranks() const { return pipeline * data; }
  constexpr GridPlace place_of(int rank) const {
    return inner == Inner::data ? GridPlace{rank / data, rank % data}
                                : GridPlace{rank % pipeline, rank / pipeline};
  }
  constexpr int rank_of(GridPlace at) const {
    return inner == Inner::data ? at.stage * data + at.replica : at.replica * pipeline + at.stage;
  }
  constexpr bool first_stage(int rank) const { return place_of(rank).stage == 0; }
  constexpr bool last_stage(int rank) const { return place_of(rank).stage == pipeline - 1; }
  /// Rank of the same replica `by` stages later; that stage must exist.
  constexpr int neighbour(int rank, int by) const {
    const GridPlace at = place_of(rank);
    return rank_of({at.stage + by, at.replica});
  }
  bool operator==(const Grid&) const = default;
};

/// `ranks` ranks in `pipeline` stages; throws Failure naming the fix unless `ranks` is divisible.
Grid make_grid(int ranks, int pipeline, Inner inner = Inner::data);

/// One line a machine, for logs: "node 0: rank 0 (stage 0, replica 0), …". `node` [ranks].
std::string describe(const Grid& grid, std::span<const int> node);

}  // namespace espalier::parallel
