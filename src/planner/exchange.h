#pragma once
// What the replicas of a stage exchange in a step: sums of gradients, encoded or not, and under
// ZeRO-1 the updated values.
//
//   reduction   in buckets that overlap with the last backward (communication_cost/exchange_model.h);
//               the part that is exposed. Under ZeRO-1 only its first half: each rank gets the sums
//               of its slices
//   update      of all kept elements; under ZeRO-1 of a rank's slices, and then the gather of
//               values, which overlaps with the update of the next bucket
//   codecs      the times of "encode NAME" and "decode NAME" as operations of the machine
//
// "hierarchical", "auto" over several machines, and "nccl" sum within the innermost level of links,
// between its units, and within it again:
//
//   2 (g-1)/g b over the inner link, 2 (n-1)/n b/g over the outer one
//
// for b bytes, g replicas in a unit and n units. Others send all bytes over the outer link.
#include "io/config/config.h"
#include "src/kernels/wire_codec.h"
#include "src/planner/machine.h"

namespace espalier::planner {

/// The parameters of a rank, and the times around their exchange.
struct ReplicaWork {
  int64_t kept = 0;  ///< of one device
  int first = 0;     ///< device of the first replica; the others follow, `ways` apart
  int replicas = 1, ways = 1;
  double before_s = 0;    ///< of a step, until the last backward begins
  double backward_s = 0;  ///< of the last micro-batch
  double update_s = 0;    ///< of all kept elements
};

struct ReplicaTimes {
  double reduction = 0;  ///< exposed seconds
  double update = 0;     ///< seconds, with the exposed gather of values
  double bytes = 0;      ///< sent by a device
};

ReplicaTimes exchange_of(const io::Config& config, const Machine& machine, const ReplicaWork& work);

/// The operation that encodes or decodes `values` values of type `dtype`: `verb` "encode" or
/// "decode". Its name has the codec and its bits, "encode maxmin:4": a bucket's size hardly counts.
kernels::OperationRow codec_operation(std::string_view verb, const kernels::WireFormat& format,
                                      int64_t values, DType dtype);

}  // namespace espalier::planner
