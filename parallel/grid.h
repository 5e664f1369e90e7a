#pragma once
// The grid of ranks: pipeline stages × data-parallel replicas. Pure arithmetic, constexpr.
//
//   replicas_first   rank = stage * data + replica
//   stages_first     rank = replica * pipeline + stage
//
// Launchers fill machines in the order of ranks. So with replicas_first all-reduce stays inside
// machines, with stages_first messages between stages do.
#include <span>
#include <string>
#include <string_view>

#include "src/core/error.h"

namespace espalier::parallel {

struct GridPlace {
  int stage = 0;    ///< 0 … pipeline - 1
  int replica = 0;  ///< 0 … data - 1
  bool operator==(const GridPlace&) const = default;
};

/// Which ranks have consecutive numbers: the replicas of a stage, or the stages of a replica.
enum class RankOrder : uint8_t { replicas_first, stages_first };

/// "replicas_first", "stages_first".
std::string_view name_of(RankOrder order);
/// Throws Failure, with the names, for another.
RankOrder rank_order_by_name(std::string_view name);

struct Grid {
  int pipeline = 1;  ///< stages
  int data = 1;      ///< replicas of each stage
  RankOrder order = RankOrder::replicas_first;

  constexpr int ranks() const { return pipeline * data; }
  constexpr GridPlace place_of(int rank) const {
    return order == RankOrder::replicas_first ? GridPlace{rank / data, rank % data}
                                              : GridPlace{rank % pipeline, rank / pipeline};
  }
  constexpr int rank_of(GridPlace at) const {
    return order == RankOrder::replicas_first ? at.stage * data + at.replica
                                              : at.replica * pipeline + at.stage;
  }
  bool operator==(const Grid&) const = default;
};

/// `ranks` ranks in `pipeline` stages; throws Failure naming the fix unless `ranks` is divisible.
Grid make_grid(int ranks, int pipeline, RankOrder order = RankOrder::replicas_first);

/// One line a machine, for logs: "node 0: rank 0 (stage 0, replica 0), …". `node` [ranks].
std::string describe(const Grid& grid, std::span<const int> node);

}  // namespace espalier::parallel
