#pragma once
// How long a sum over the replicas takes as this run's gradients go (Transfer::timed_sum): through
// the host, by the messages that there are, or from device to device, on the link's own queue, from
// when nothing is under way until the queue has done it. Numbers are drawn at random. The least of a
// few repeats; of each the slowest rank's, so that all ranks get the same number.
#include "parallel/transport/communicator.h"
#include "src/communication_cost/link.h"
#include "src/kernels/kernels.h"

namespace espalier::train {

class Transfer;

class ExchangeTimer {
 public:
  /// All is collective. Both must outlive it; `type`: that of gradients.
  ExchangeTimer(parallel::Communicator& comm, Transfer& transfer, DType type);

  /// Seconds to sum `elements` numbers.
  double seconds(const kernels::WireFormat& format, int64_t elements);
  /// Seconds an element to encode and decode so many, alone.
  double codec_seconds(const kernels::WireFormat& format, int64_t elements);
  /// Latency of a sum, and the bandwidth that its bytes see, by sums of up to `longest` elements.
  /// Where longer ones take no longer: the latency alone.
  cost::Link link(int64_t longest);

 private:
  parallel::Communicator& comm_;
  Transfer& transfer_;
  DType type_;
};

}  // namespace espalier::train
