#pragma once
// Sums the flat gradient (fp32, bf16 or fp16) in buckets, while the backward pass still fills it.
//
// The gradient is stored in backward order, so a growing prefix of it is final. Buckets are
// contiguous slices cut at parameter boundaries, each at least `bucket_bytes` (the last may be
// smaller). A bucket starts when the final prefix covers it; up to `in_flight` run at once. The
// argument of `begin` selects the mode:
//
//   boundaries    all-reduce: afterwards every rank holds all sums
//   a partition   ZeRO-1: afterwards a rank holds the sums of the slices it owns; the rest of the
//                 gradient is undefined. It sends half of the bytes; ParameterGather
//                 (parameter_gather.h) sends the other half, the values, after the optimizer step.
//
// The sums have the same bits in both modes and for every order of calls on the ranks. Sizes,
// boundaries, partition and options must be equal on all ranks. With one rank nothing is copied or
// sent.
#include <functional>
#include <memory>
#include <span>

#include "parallel/reduction/bucket_pipeline.h"

namespace espalier::parallel {

struct BucketOptions {
  /// Size of buckets cut here; 0: usual_bucket_bytes. A partition has its own buckets.
  size_t bucket_bytes = size_t{4} << 20U;
  bool overlap = true;  ///< false: everything runs in `finish`
  int in_flight = 2;    ///< concurrent reductions; each has its own staging memory
  PieceOptions pieces = {};
};

class GradientBuckets {
 public:
  /// Creates a reduction; empty: sra.
  using MakeReduction = std::function<std::unique_ptr<Reduction>(Communicator&, Arena&)>;

  GradientBuckets(Communicator& comm, Arena& arena, const BucketOptions& options = {},
                  const MakeReduction& make = {});

  /// Starts a step of all-reduces. `boundaries`: ascending end offsets of the parameters in `flat`,
  /// in elements; an empty list makes one bucket. `wire`: encodes the elements.
  void begin(const Tensor& flat, std::span<const int64_t> boundaries, const WireView& wire = {});
  /// Starts a step of reduce-scatters. The buckets are those of the partition.
  void begin(const Tensor& flat, const Partition& partition, const WireView& wire = {});
  /// Elements [0, end) of the gradient are final. `end` never decreases.
  void ready(int64_t end);
  /// Advances the buckets in flight, without waiting; call it regularly between kernels.
  void progress() { pipeline_.progress(); }
  /// The whole gradient is final: waits until all buckets hold the sums.
  void finish();

  /// End offsets of the buckets of the current step; none with one rank.
  std::span<const int64_t> bucket_ends() const { return pipeline_.step().ends; }

 private:
  BucketOptions options_;
  int64_t final_ = 0;  ///< elements known to be final
  BucketPipeline pipeline_;
};

}  // namespace espalier::parallel
