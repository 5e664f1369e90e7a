#pragma once
// From device to device, by NCCL: nothing crosses the bus, codecs run on the devices, and the host
// waits for nothing (parallel/reduction/device). The store's kept errors and master copies are the device's.
#include <string>

#include "parallel/reduction/device/buckets.h"
#include "parallel/reduction/powersgd/device.h"
#include "src/train/exchange/host_copy.h"
#include "src/train/exchange/transfer.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// Why the sums of this config are the host's among these ranks, on whatever device; empty: they
/// may go from device to device.
std::string host_reason(const io::Config& config);

/// Whether they do, as far as NCCL can be had among all of `world`; for plans. Collective.
bool sums_on_device(const io::Config& config, parallel::Communicator& world, Stream& stream);

class DeviceTransfer final : public Transfer {
 public:
  /// Collective over the replicas. Throws Failure: parallel::NcclLink::obstacle.
  DeviceTransfer(const io::Config& config, parallel::Communicator& replicas, Stage& stage);

  parallel::Wire& gradient_wire() override { return gradient_wire_; }
  parallel::Wire& value_wire() override { return value_wire_; }
  parallel::LowRank& low_rank() override { return low_rank_; }
  void follow(const Tensor& gradient) override;
  void sum(const Cut& cut) override;
  void ready(int64_t end) override;
  const Tensor& on_host() override;
  void finish() override { gradients_.finish(); }
  void gather(const Tensor& value, const parallel::Partition& partition, bool coded) override;
  void stepped(int64_t end) override { values_.ready(end); }
  void finish_gather() override { values_.finish(); }
  std::unique_ptr<TimedSum> timed_sum(const kernels::WireFormat& format, int64_t elements) override;
  bool on_device() const override { return true; }
  void sum_counts(const Tensor& counts) override;
  void collect(std::span<const sparse::SharedVector> vectors) override;

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
  HostCopy copy_;      ///< for codecs that are chosen by gradients
  bool sums_ = false;  ///< `sum` has been called for this gradient
};

}  // namespace espalier::train
