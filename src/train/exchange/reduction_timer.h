#pragma once
// Measured times of reductions over the replicas, run as this run's gradients are reduced: by the
// host's messages, or from device to device. Codec choice and `reduction = "auto"` use them. Input
// values are random. A time is the least of a few repeats, and of each repeat the slowest rank's,
// so all ranks get the same number.
#include "src/communication_cost/link.h"
#include "src/train/exchange/replica_route.h"

namespace espalier::train {

class ReductionTimer {
 public:
  /// All functions are collective. Both must outlive it; `type`: that of gradients.
  ReductionTimer(parallel::Communicator& comm, ReplicaRoute& route, DType type);

  /// Seconds to reduce `elements` values.
  double seconds(const kernels::WireFormat& format, int64_t elements);
  /// Seconds per element to encode and decode `elements` values, without messages.
  double codec_seconds(const kernels::WireFormat& format, int64_t elements);
  /// Latency and bandwidth, fitted to reductions of up to `longest` elements. If longer ones take
  /// no longer: the latency alone.
  cost::Link link(int64_t longest);

 private:
  parallel::Communicator& comm_;
  ReplicaRoute& route_;
  DType type_;
};

}  // namespace espalier::train
