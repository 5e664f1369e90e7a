#pragma once
// The host's messages: those of the communicator, with the host's codecs. On a device the host has
// copies of the arrays (host_copy.h), which cross the bus as they are.
#include "parallel/reduction/bucketer.h"
#include "parallel/reduction/parameter_gather.h"
#include "src/train/exchange/host_copy.h"
#include "src/train/exchange/transfer.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

class HostTransfer final : public Transfer {
 public:
  HostTransfer(const io::Config& config, parallel::Communicator& replicas, Stage& stage);

  parallel::Wire& gradient_wire() override { return gradient_wire_; }
  parallel::Wire& value_wire() override { return value_wire_; }
  parallel::LowRank& low_rank() override { return low_rank_; }
  void follow(const Tensor& gradient) override;
  void sum(const Cut& cut) override;
  void ready(int64_t end) override;
  const Tensor& on_host() override;
  void finish() override;
  void gather(const Tensor& value, const parallel::Partition& partition, bool coded) override;
  void stepped(int64_t end) override;
  void finish_gather() override;
  std::unique_ptr<TimedSum> timed_sum(const kernels::WireFormat& format, int64_t elements) override;

 private:
  HostTimedSum::Means timed_;
  parallel::Wire gradient_wire_, value_wire_;
  parallel::LowRank low_rank_;
  parallel::GradientBuckets buckets_;
  parallel::ParameterGather gather_;
  HostCopy gradient_, value_;
  const parallel::Partition* partition_ = nullptr;  ///< of the values
  bool sums_ = false;                               ///< `sum` has been called for this gradient
};

}  // namespace espalier::train
