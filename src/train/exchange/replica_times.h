#pragma once
// Predicts what the exchange between the replicas of a stage costs in a step: sums of gradients,
// encoded or not, and under ZeRO-1 the updated values.
//
//   reduction   in buckets that overlap with the last backward
//               (communication_cost/exchange_model.h): the exposed part. Under ZeRO-1 only its
//               first half, in which each rank gets the sums of its slices
//   update      of all kept elements; under ZeRO-1 of a rank's slices, and then the gather of
//               values, which overlaps with the update of the next bucket
#include <functional>

#include "io/config/config.h"
#include "src/communication_cost/link.h"
#include "src/kernels/wire_format.h"

namespace espalier::train {

/// The parameters of a rank, and the times around their exchange.
struct ReplicaWork {
  int64_t kept = 0;  ///< kept elements
  int replicas = 1;
  DType gradient = DType::fp32;  ///< in which gradients are summed
  double before_s = 0;           ///< of a step, until the last backward begins
  double backward_s = 0;         ///< of the last micro-batch
  double update_s = 0;           ///< of all kept elements
};

struct ReplicaRates {
  cost::Link link;  ///< between replicas
  /// Messages and sums take no computing time, so they overlap with it.
  bool overlaps = true;
  double memory_per_s = 1e11;  ///< bytes of memory that sums read and write
  /// Seconds to encode values, and to decode and add them. Empty: no time.
  std::function<double(const kernels::WireFormat&format, int64_t values)> encode_s{}, decode_s{};
};

struct ReplicaTimes {
  double reduction = 0;  ///< exposed seconds
  double update = 0;     ///< seconds, with the exposed gather of values
  double bytes = 0;      ///< sent by a rank
};

ReplicaTimes replica_times(const io::Config& config, const ReplicaWork& work,
                           const ReplicaRates& rates);

}  // namespace espalier::train
