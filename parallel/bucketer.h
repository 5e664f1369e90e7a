#pragma once
// All-reduce of the flat gradient in buckets, under the backward pass that still fills it.
//
// The gradient is stored in backward order, so a growing prefix of it is final. Buckets are
// contiguous slices cut at parameter boundaries, each at least `bucket_bytes` (the last may be
// smaller). A bucket starts when the final prefix covers it; up to `in_flight` run at once. The
// sums do not depend on when ranks call what: all ranks hold the same bits afterwards. Sizes,
// boundaries and options must be equal on all ranks. With one rank nothing is copied or sent.
//
// Emits one span a bucket on Track::allreduce; it begins when the bucket started or the one before
// it ended, so spans do not overlap.
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/allreduce.h"

namespace espalier::parallel {

struct BucketOptions {
  size_t bucket_bytes = size_t{4} << 20U;
  bool overlap = true;  ///< false: everything runs in `finish`
  int in_flight = 2;    ///< reductions at once; each has its own staging memory
  AllReduceOptions allreduce = {};
};

class GradientBuckets {
 public:
  /// Makes a reduction; empty: AllReduce. Other algorithms and codecs come in here.
  using MakeReduction = std::function<std::unique_ptr<Reduction>(Communicator&, Arena&)>;

  GradientBuckets(Communicator& comm, Arena& arena, const BucketOptions& options = {},
                  const MakeReduction& make = {});

  /// Starts a step. `boundaries`: ascending end offsets of the parameters in `flat`, in elements;
  /// an empty list makes one bucket.
  void begin(std::span<float> flat, std::span<const int64_t> boundaries);
  /// Elements [0, end) of the gradient are final. `end` never decreases.
  void ready(int64_t end);
  /// Moves what is in flight, without waiting; call it now and then between kernels.
  void progress();
  /// The whole gradient is final: waits until all buckets hold the sums.
  void finish();

  /// End offsets of the buckets of the present step.
  std::span<const int64_t> bucket_ends() const { return ends_; }

 private:
  struct Slot {
    std::unique_ptr<Reduction> reduction;
    size_t bucket = 0;
    double begin = 0;  ///< seconds
    bool busy = false;
  };

  Progress advance();
  void start(Slot& slot);
  void complete(Slot& slot);
  std::vector<int> missing() const;

  Communicator& comm_;
  BucketOptions options_;
  std::vector<Slot> slots_;
  std::vector<int64_t> ends_;
  std::span<float> flat_;
  int64_t final_ = 0;     ///< elements known to be final
  size_t started_ = 0;    ///< buckets
  size_t completed_ = 0;  ///< buckets
  double last_end_ = 0;   ///< seconds, of the last span
};

}  // namespace espalier::parallel
