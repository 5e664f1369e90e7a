#pragma once
// Measured times of reductions over the replicas, run as this run's gradients are reduced: by the
// host's messages, or from device to device. Codec choice and `reduction = "auto"` use them. Input
// values are random. A time is the least of a few repeats, and of each repeat the slowest rank's,
// so all ranks get the same number.
#include <memory>
#include <string>
#include <vector>

#include "parallel/reduction/device/reduction.h"
#include "parallel/reduction/reduction.h"
#include "src/communication_cost/link.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

class ReplicaCollectives;

class ReductionTimer {
 public:
  /// All functions are collective. Both must outlive it; `type`: that of gradients.
  ReductionTimer(parallel::Communicator& comm, ReplicaCollectives& collectives, DType type);

  /// Seconds to reduce `elements` values.
  double seconds(const kernels::WireFormat& format, int64_t elements);
  /// Seconds per element to encode and decode `elements` values, without messages.
  double codec_seconds(const kernels::WireFormat& format, int64_t elements);
  /// Latency and bandwidth, fitted to reductions of up to `longest` elements. If longer ones take
  /// no longer: the latency alone.
  cost::Link link(int64_t longest);

 private:
  parallel::Communicator& comm_;
  ReplicaCollectives& collectives_;
  DType type_;
};

/// A reduction of random values of the gradient's type in one wire format, to be timed.
class TimedReduction {
 public:
  TimedReduction() = default;
  TimedReduction(const TimedReduction&) = delete;
  TimedReduction& operator=(const TimedReduction&) = delete;
  virtual ~TimedReduction() = default;

  /// Reduces and waits until the reduction has finished. Collective; throws PeerLost.
  virtual void reduce() = 0;
  /// Encodes and decodes the values and waits for both. Sends nothing.
  virtual void encode_decode() = 0;
  /// Restores the borrowed wire and gradient.
  virtual void end() {}
};

/// [count] values of `type`, uniform in (-1, 1), always the same.
std::vector<std::byte> random_values(DType type, int64_t count);
/// Segments of a wire with one format.
std::vector<parallel::WireSegment> one_segment(const kernels::WireFormat& format, int64_t elements);

/// Reduces between devices with the run's own link, reduction and wire. Values are in the gradient
/// buffer, whose contents are overwritten; codes of `encode_decode` follow them. So the timer
/// allocates nothing, and plans count the buffers of reduction and wire.
class DeviceTimedReduction final : public TimedReduction {
 public:
  struct Context {
    parallel::DeviceLink& link;
    parallel::DeviceReduction& reduction;
    parallel::Wire& wire;
    Stage& stage;
  };
  /// Waits for enqueued kernels. `elements`: at most the gradient's; for `encode_decode` at most a
  /// quarter, because codes need space too.
  DeviceTimedReduction(const Context& context, const kernels::WireFormat& format, int64_t elements);
  void reduce() override;
  void encode_decode() override;
  /// The gradient is zero afterwards where values were.
  void end() override;

 private:
  void fill_random();

  Context context_;
  Tensor x_;
  std::vector<parallel::WireSegment> segments_;  ///< of the wire before
  Tensor feedback_;
  uint64_t key_ = 0;
};

}  // namespace espalier::train
