#pragma once
// The route of a stage's arrays to its other replicas:
//   through the host   the communicator's messages, codecs of the CPU
//   between devices    by NCCL: no array crosses the bus, codecs run on the devices, and the host
//                      waits for nothing; error feedback and master copies are in device memory
// Gradients are summed and, with ZeRO-1, updated values gathered in buckets (reduction/buckets.h).
#include <memory>

#include "parallel/reduction/device/buckets.h"
#include "parallel/transport/device/nccl_link.h"
#include "parallel/wire/wire.h"
#include "src/train/exchange/timed_reduction.h"

namespace espalier::train {

class ReplicaRoute {
 public:
  enum class Kind : uint8_t { host, device };
  /// Collective over the replicas; all arguments but `config` must outlive it. Throws Failure
  /// between devices: parallel::NcclLink::obstacle.
  ReplicaRoute(const io::Config& config, parallel::Communicator& replicas, Stage& stage, Kind kind);

  parallel::Buckets& gradients() { return *gradients_; }
  parallel::Buckets& values() { return *values_; }
  /// Encodings of gradients and of values, whose segments the caller sets.
  parallel::Wire& gradient_wire() { return gradient_wire_; }
  parallel::Wire& value_wire() { return value_wire_; }
  /// A name of parallel/reduction/registry.h, not "auto".
  const std::string& reduction() const { return reduction_name_; }
  /// Between devices; null: through the host.
  parallel::NcclLink* link() { return link_.get(); }

  /// A reduction of `elements` values in this format, for measurements. No other collective runs,
  /// and the gradient is overwritten, until it ends. Collective.
  std::unique_ptr<TimedReduction> timed_reduction(const kernels::WireFormat& format,
                                                  int64_t elements);

 private:
  parallel::Communicator& replicas_;
  Stage& stage_;
  std::string reduction_name_;
  std::unique_ptr<parallel::NcclLink> link_;
  const kernels::Kernels& kernels_;  ///< of codecs
  Stream& stream_;
  parallel::Wire gradient_wire_, value_wire_;
  std::unique_ptr<parallel::DeviceReduction> reduction_;  ///< between devices
  std::unique_ptr<parallel::Buckets> gradients_, values_;
};

/// The reason why this config needs reductions on the host on any device; empty: none.
std::string device_obstacle(const io::Config& config);
/// The reason why these ranks cannot reduce from device to device; empty: they can. Collective.
std::string device_obstacle(const io::Config& config, parallel::Communicator& ranks,
                            Stream& stream);

}  // namespace espalier::train
