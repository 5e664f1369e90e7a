#pragma once
// Collectives over the replicas from device to device by NCCL: no array crosses the bus, codecs run
// on the devices, and the host waits for nothing. Error feedback and master copies stay in device
// memory.
#include <string>

#include "parallel/reduction/device/buckets.h"
#include "parallel/reduction/powersgd/device.h"
#include "src/train/exchange/replica_collectives.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// The reason why this config needs reductions on the host on any device; empty: none.
std::string device_obstacle(const io::Config& config);

/// Whether gradients will be reduced from device to device, as far as NCCL is available on all of
/// `world`; for plans. Collective.
bool reduces_on_device(const io::Config& config, parallel::Communicator& world, Stream& stream);

class DeviceCollectives final : public ReplicaCollectives {
 public:
  /// Collective over the replicas. Throws Failure: parallel::NcclLink::obstacle.
  DeviceCollectives(const io::Config& config, parallel::Communicator& replicas, Stage& stage);

  parallel::Wire& gradient_wire() override { return gradient_wire_; }
  parallel::Wire& value_wire() override { return value_wire_; }
  parallel::LowRank& low_rank() override { return low_rank_; }
  void begin(const Tensor& gradient) override;
  void start_reduce(const Buckets& buckets) override;
  void gradient_ready(int64_t end) override;
  const Tensor& gradient_on_host() override;
  void finish_reduce() override { gradients_.finish(); }
  void start_gather(const Tensor& value, const parallel::Partition& partition, bool coded) override;
  void value_ready(int64_t end) override { values_.ready(end); }
  void finish_gather() override { values_.finish(); }
  std::unique_ptr<TimedReduction> timed_reduction(const kernels::WireFormat& format,
                                                  int64_t elements) override;
  bool on_device() const override { return true; }
  void all_reduce_counts(const Tensor& counts) override;
  void all_gather(std::span<const sparse::SharedVector> vectors) override;

 private:
  Stage& stage_;
  size_t bucket_bytes_;
  parallel::NcclLink link_;
  parallel::Wire gradient_wire_, value_wire_;
  parallel::LowRank low_rank_;
  parallel::DeviceReduction reduction_;
  parallel::DeviceLowRankReduction factored_;
  parallel::DeviceBuckets gradients_, values_;
  Tensor gradient_;
  HostCopy copy_;          ///< for codecs that are chosen by gradients
  bool reducing_ = false;  ///< `start_reduce` was called for this gradient
};

}  // namespace espalier::train
