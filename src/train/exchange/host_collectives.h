#pragma once
// Collectives over the replicas through the host: the communicator's messages, the host's codecs.
// On a device each array has a pinned copy on the host (HostCopy).
#include "parallel/reduction/buckets.h"
#include "src/train/exchange/replica_collectives.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

class HostCollectives final : public ReplicaCollectives {
 public:
  HostCollectives(const io::Config& config, parallel::Communicator& replicas, Stage& stage);

  parallel::Wire& gradient_wire() override { return gradient_wire_; }
  parallel::Wire& value_wire() override { return value_wire_; }
  parallel::LowRank& low_rank() override { return low_rank_; }
  void begin(const Tensor& gradient) override;
  void start_reduce(const Buckets& buckets) override;
  void gradient_ready(int64_t end) override;
  const Tensor& gradient_on_host() override;
  void finish_reduce() override;
  void start_gather(const Tensor& value, const parallel::Partition& partition, bool coded) override;
  void value_ready(int64_t end) override;
  void finish_gather() override;
  std::unique_ptr<TimedReduction> timed_reduction(const kernels::WireFormat& format,
                                                  int64_t elements) override;

 private:
  HostTimedReduction::Context timing_;
  parallel::Wire gradient_wire_, value_wire_;
  parallel::LowRank low_rank_;
  size_t bucket_bytes_;
  parallel::HostBuckets buckets_, gather_;
  HostCopy gradient_, value_;
  bool reducing_ = false;  ///< `start_reduce` was called for this gradient
};

}  // namespace espalier::train
