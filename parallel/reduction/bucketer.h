#pragma once
// Sums of the flat gradient (fp32, bf16 or fp16) in buckets, under the backward pass that still fills it.
//
// The gradient is stored in backward order, so a growing prefix of it is final. Buckets are
// contiguous slices cut at parameter boundaries, each at least `bucket_bytes` (the last may be
// smaller). A bucket starts when the final prefix covers it; up to `in_flight` run at once. Two
// modes, by what `begin` is given:
//
//   boundaries    all-reduce: afterwards every rank holds all sums
//   a partition   ZeRO-1: afterwards a rank holds the sums of the slices it owns; the rest of the
//                 gradient has no meaning. Half of the bytes; the other half are the values that
//                 ParameterGather (parameter_gather.h) brings back after the optimizer step.
//
// The sums have the same bits in both modes and whenever ranks call what. Sizes, boundaries,
// partition and options must be equal on all ranks. With one rank nothing is copied or sent.
#include <functional>
#include <memory>
#include <span>

#include "parallel/reduction/bucket_pipeline.h"

namespace espalier::parallel {

struct BucketOptions {
  /// Of buckets cut here; 0: usual_bucket_bytes. A partition brings its own.
  size_t bucket_bytes = size_t{4} << 20U;
  bool overlap = true;  ///< false: everything runs in `finish`
  int in_flight = 2;    ///< reductions at once; each has its own staging memory
  PieceOptions pieces = {};
};

class GradientBuckets {
 public:
  /// Makes a reduction; empty: sra.
  using MakeReduction = std::function<std::unique_ptr<Reduction>(Communicator&, Arena&)>;

  GradientBuckets(Communicator& comm, Arena& arena, const BucketOptions& options = {},
                  const MakeReduction& make = {});

  /// Starts a step of all-reduces. `boundaries`: ascending end offsets of the parameters in `flat`,
  /// in elements; an empty list makes one bucket. `wire`: how elements travel.
  void begin(const Tensor& flat, std::span<const int64_t> boundaries, const WireView& wire = {});
  /// Starts a step of reduce-scatters. The buckets are those of the partition.
  void begin(const Tensor& flat, const Partition& partition, const WireView& wire = {});
  /// Elements [0, end) of the gradient are final. `end` never decreases.
  void ready(int64_t end);
  /// Moves what is in flight, without waiting; call it now and then between kernels.
  void progress() { pipeline_.progress(); }
  /// The whole gradient is final: waits until all buckets hold the sums.
  void finish();

  /// End offsets of the buckets of the present step; none when there is one rank.
  std::span<const int64_t> bucket_ends() const { return pipeline_.step().ends; }

 private:
  BucketOptions options_;
  int64_t final_ = 0;  ///< elements known to be final
  BucketPipeline pipeline_;
};

}  // namespace espalier::parallel
