#pragma once
// The links of a layout on a machine: the level between two stages, or between the replicas of a
// stage, and a rank's share of its bandwidth.
//
// A shared level (machine.h) gives its bandwidth to a unit of the level within it: a node's port to
// the network. The devices of a unit that send over it at the same time divide it:
//
//   stages          one for each message of theirs to a rank in another unit
//   ring            one for each stage that has replicas in the unit and elsewhere
//   hierarchical,   all with replicas elsewhere; each sends its part of what the unit's replicas
//   auto, nccl      have summed
//   sra and others  all with replicas elsewhere; each sends all of its gradients
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/grid.h"
#include "src/planner/machine.h"
#include "src/train/exchange/replica_times.h"

namespace espalier::planner {

class Links {
 public:
  /// Ranks of the pipeline that send to each other.
  using Messages = std::vector<std::pair<int, int>>;

  /// A rank of the grid is `ways` devices, which a unit holds as a whole. `messages`: forward, each
  /// pair once. The machine must outlive it. O(ranks).
  Links(const Machine& machine, const parallel::Grid& grid, int ways, Messages messages = {});

  /// Of messages between stages, in either direction: the slowest of all replicas. Stages are
  /// pipeline ranks.
  cost::Link between_stages(int from, int to) const;
  /// Of a flat reduction over the replicas of a stage that takes as long as `reduction`:
  ///
  ///   2 (g-1)/g b over the innermost level, 2 (n-1)/n b/g over the outermost one
  ///
  /// for b bytes, g replicas in an innermost unit and n units, if the reduction sums by levels.
  /// Others send all bytes over the outermost level.
  cost::Link of_replicas(int stage, std::string_view reduction) const;

 private:
  /// Devices of a unit that send to units beside it.
  struct Senders {
    int of_messages = 0, of_rings = 0, with_replicas = 0;
  };
  int64_t device(int stage, int replica) const;
  size_t level_between(int stage, int replica, int other_stage, int other_replica) const;
  void count(size_t level);
  /// The bandwidth of a rank in the unit of `device`.
  double bandwidth(size_t level, int64_t device, int Senders::*senders) const;

  const Machine& machine_;
  parallel::Grid grid_;
  int ways_;
  Messages messages_;
  std::vector<std::vector<Senders>> senders_;  ///< [levels][units within]; empty: not shared
};

/// The rates of a machine for the exchanges of replicas (train/exchange/replica_times.h). Codecs
/// are operations of the machine, "encode NAME" and "decode NAME". `link`: of the replicas. The
/// machine must outlive the result.
train::ReplicaRates rates_between(const io::Config& config, const Machine& machine,
                                  const cost::Link& link);

/// The operation that encodes or decodes `values` values of type `dtype`: `verb` "encode" or
/// "decode". Its name has the codec and its bits, "encode maxmin:4": size and header of a bucket
/// hardly count.
kernels::OperationRow codec_operation(std::string_view verb, const kernels::WireFormat& format,
                                      int64_t values, DType dtype);

}  // namespace espalier::planner
