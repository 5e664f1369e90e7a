#pragma once
// The rates of a machine for the exchanges of replicas (train/exchange/replica_times.h).
//
// Codecs are operations of the machine, "encode NAME" and "decode NAME".
#include "src/planner/machine.h"
#include "src/train/exchange/replica_times.h"

namespace espalier::planner {

/// `link`: of the replicas (links.h). The machine must outlive the result.
train::ReplicaRates rates_between(const io::Config& config, const Machine& machine,
                                  const cost::Link& link);

/// The operation that encodes or decodes `values` values of type `dtype`: `verb` "encode" or
/// "decode". Its name has the codec and its bits, "encode maxmin:4": size and header of a bucket
/// hardly count.
kernels::OperationRow codec_operation(std::string_view verb, const kernels::WireFormat& format,
                                      int64_t values, DType dtype);

}  // namespace espalier::planner
