#pragma once
// How long a sum over the replicas takes on the links that there are, in a given wire format:
// measured with real messages of numbers drawn at random. The least of a few repeats; of each the
// slowest rank's, so that all ranks get the same number.
#include <string>

#include "parallel/communicator.h"
#include "src/kernels/kernels.h"
#include "src/plan/link.h"

namespace espalier::train {

class ExchangeTimer {
 public:
  /// Collective, as all of it. All must outlive it.
  ExchangeTimer(parallel::Communicator& comm, const kernels::Kernels& kernels, Stream& stream,
                std::string reduction);

  /// Seconds to sum `elements` fp32 numbers.
  double seconds(const kernels::WireFormat& format, int64_t elements);
  /// Seconds an element to encode and decode, alone.
  double codec_seconds(const kernels::WireFormat& format);
  /// Latency of a sum, and the bandwidth that its bytes see.
  plan::Link link();

 private:
  parallel::Communicator& comm_;
  const kernels::Kernels& kernels_;
  Stream& stream_;
  std::string reduction_;
};

}  // namespace espalier::train
