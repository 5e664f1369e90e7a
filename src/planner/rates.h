#pragma once
// The rates of a machine for the exchanges of replicas (train/exchange/replica_times.h).
//
// Codecs are operations of the machine, "encode NAME" and "decode NAME". "hierarchical", "auto"
// over several units, and "nccl" sum within the innermost level of links, between its units, and
// within it again:
//
//   2 (g-1)/g b over the inner link, 2 (n-1)/n b/g over the outer one
//
// for b bytes, g replicas in a unit and n units. Others send all bytes over the outer link.
#include "src/planner/machine.h"
#include "src/train/exchange/replica_times.h"

namespace espalier::planner {

/// Devices that hold the replicas of a stage.
struct ReplicaDevices {
  int first = 0;  ///< device of the first replica; the others follow, `ways` apart
  int replicas = 1, ways = 1;
};

/// The machine must outlive the result.
train::ReplicaRates rates_between(const io::Config& config, const Machine& machine,
                                  const ReplicaDevices& devices);

/// The operation that encodes or decodes `values` values of type `dtype`: `verb` "encode" or
/// "decode". Its name has the codec and its bits, "encode maxmin:4": a bucket's size hardly counts.
kernels::OperationRow codec_operation(std::string_view verb, const kernels::WireFormat& format,
                                      int64_t values, DType dtype);

}  // namespace espalier::planner
