#pragma once
// Reductions of random values over the replicas, to be timed (reduction_timer.h).
#include <memory>
#include <vector>

#include "parallel/reduction/device/reduction.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// Of a plan: a reduction to be timed, or encode and decode alone (`code`).
struct TimedSum {
  kernels::WireFormat format;
  int64_t elements = 0;
  bool code = false;
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
using WireSegments = std::vector<parallel::WireSegment>;
/// Segments of a wire with one format.
WireSegments one_segment(const kernels::WireFormat& format, int64_t elements);

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
