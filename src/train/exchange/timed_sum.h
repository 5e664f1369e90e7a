#pragma once
// A sum over the replicas to be timed (exchange_timer.h): of numbers drawn at random, of the
// gradient's type, in one wire format, as the run's gradients go (transfer.h).
#include <memory>
#include <string>
#include <vector>

#include "parallel/reduction/device/reduction.h"
#include "parallel/reduction/reduction.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

class TimedSum {
 public:
  TimedSum() = default;
  TimedSum(const TimedSum&) = delete;
  TimedSum& operator=(const TimedSum&) = delete;
  virtual ~TimedSum() = default;

  /// From when nothing is under way until all is done. Collective; throws PeerLost.
  virtual void sum() = 0;
  /// The same of making codes of the numbers and reading them, with no message.
  virtual void code() = 0;
  /// No more of it: gives back what it has borrowed.
  virtual void end() {}
};

/// The host's reduction, on memory of its own.
class HostTimedSum final : public TimedSum {
 public:
  struct Means {
    parallel::Communicator& comm;
    const kernels::Kernels& kernels;
    Stream& stream;
    std::string reduction;  ///< parallel/reduction/registry.h
    DType type;             ///< of the numbers
  };
  HostTimedSum(const Means& means, const kernels::WireFormat& format, int64_t elements);
  void sum() override;
  void code() override;

 private:
  Means means_;
  kernels::WireFormat format_;
  std::vector<std::byte> memory_, values_, codes_;
  Tensor x_;
  parallel::Wire wire_;
  std::unique_ptr<parallel::Reduction> reduction_;
};

/// From device to device, by the run's own link, reduction and wire. The numbers lie in the memory
/// of the gradient, of which nobody may need anything, and codes of `code` behind them. So it holds
/// nothing but what sums leave behind in reduction and wire, and plans ask for the same sums.
class DeviceTimedSum final : public TimedSum {
 public:
  struct Means {
    parallel::DeviceLink& link;
    parallel::DeviceReduction& reduction;
    parallel::Wire& wire;
    Stage& stage;
  };
  /// Waits for what has been asked for. `elements`: at most those of the gradient; for `code` a
  /// quarter, which leaves it room.
  DeviceTimedSum(const Means& means, const kernels::WireFormat& format, int64_t elements);
  void sum() override;
  void code() override;
  /// The gradient is zero afterwards where numbers were.
  void end() override;

 private:
  void draw();

  Means means_;
  Tensor x_;
  std::vector<parallel::WireSegment> segments_;  ///< of the wire before
  Tensor feedback_;
  uint64_t key_ = 0;
};

}  // namespace espalier::train
