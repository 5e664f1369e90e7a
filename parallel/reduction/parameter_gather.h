#pragma once
// The second half of ZeRO-1: after the optimizer has stepped a rank's slices of the flat values
// (fp32, bf16 or fp16), every rank gets all slices. The gather uses the gradient's partition
// (bucketer.h), bucket after bucket: stepped buckets are sent while the next ones are stepped. With
// a wire whose segments are changes, the optimizer steps their targets, and the values follow on
// all ranks.
//
//   gather.begin(values, partition, wire);
//   for each bucket { step this rank's slice; gather.ready(bucket); }
//   gather.finish();                            // values of all ranks have arrived
//
// Between `begin` and `finish` the slices of other ranks in `flat` are overwritten; `flat` must not
// be read. A rank sends (p-1)/p of the array's bytes. Without a wire it needs no memory of its own.
// Throws PeerLost.
#include "parallel/reduction/bucketer.h"

namespace espalier::parallel {

class ParameterGather {
 public:
  /// Reads the options `overlap`, `in_flight` and `allreduce.piece_bytes`.
  ParameterGather(Communicator& comm, Arena& arena, const BucketOptions& options = {});

  void begin(const Tensor& flat, const Partition& partition, const WireView& wire = {});
  /// This rank's slices of buckets 0 … `bucket` are final. `bucket` never decreases.
  void ready(size_t bucket);
  /// Advances the buckets in flight, without waiting; call it regularly between kernels.
  void progress() { pipeline_.progress(); }
  /// All slices of this rank are final: waits until the slices of the other ranks have arrived.
  void finish() { pipeline_.finish(); }

 private:
  bool overlap_;
  size_t buckets_ = 0;  ///< of the current step
  BucketPipeline pipeline_;
};

}  // namespace espalier::parallel
