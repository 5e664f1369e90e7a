#pragma once
// The second half of ZeRO-1: after the optimizer has stepped a rank's slices of the flat values
// (fp32, bf16 or fp16), every rank gets all slices. By the partition that also cut the gradient
// (bucketer.h), bucket after bucket: one that has been stepped moves while the next are stepped.
// With a wire whose segments are changes, what has been stepped are their targets, and values
// follow on all ranks.
//
//   gather.begin(values, partition, wire);
//   for each bucket { step what is mine of it; gather.ready(bucket); }
//   gather.finish();                            // values of all ranks have arrived
//
// Between `begin` and `finish` the others' slices of `flat` are overwritten; nothing of it may be
// read. A rank sends (p-1)/p of the array's bytes; without a wire no memory of its own. Throws
// PeerLost.
#include "parallel/reduction/bucketer.h"

namespace espalier::parallel {

class ParameterGather {
 public:
  /// Of the options, `overlap`, `in_flight` and `allreduce.piece_bytes` apply.
  ParameterGather(Communicator& comm, Arena& arena, const BucketOptions& options = {});

  void begin(const Tensor& flat, const Partition& partition, const WireView& wire = {});
  /// This rank's slices of buckets 0 … `bucket` are final. `bucket` never decreases.
  void ready(size_t bucket);
  /// Moves what is in flight, without waiting; call it now and then between kernels.
  void progress() { pipeline_.progress(); }
  /// All slices of this rank are final: waits until those of the others are there.
  void finish() { pipeline_.finish(); }

 private:
  bool overlap_;
  size_t buckets_ = 0;  ///< of the present step
  BucketPipeline pipeline_;
};

}  // namespace espalier::parallel
