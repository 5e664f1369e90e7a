#pragma once
// Sums a flat array (fp32, bf16 or fp16) over ranks in buckets, while kernels still compute it.
//
// Elements become final in ascending order: gradients in backward, values in the optimizer step.
// Buckets are contiguous slices that end at parameters. A bucket starts once its elements are
// final; up to `in_flight` run at once, and make progress only inside calls (no thread). A step is
// one of:
//
//   all_reduce_step                     every rank gets all sums
//   half_step(Phases::scatter)          ZeRO-1: a rank gets the sums of the slices it owns; the
//                                       rest of the array is undefined
//   half_step(Phases::gather)           ZeRO-1, after the optimizer has stepped a rank's slices:
//                                       every rank gets all slices. If segments send
//                                       differences, the optimizer updates their targets instead
//
// Each half sends half of the bytes. The bits do not depend on the order of calls on the ranks, and
// both halves together give those of the all-reduce. Steps and options must be equal on all ranks.
// With one rank nothing is copied or sent.
//
// Emits one span a bucket on Track::allreduce. A span begins when its bucket started or the
// previous one ended, whichever is later, so spans do not overlap.
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "parallel/reduction/partition.h"
#include "parallel/reduction/reduction.h"

namespace espalier::parallel {

struct BucketedCollective {
  Tensor flat;
  Phases phases = Phases::both;
  std::vector<int64_t> ends;   ///< of the buckets
  std::vector<int64_t> edges;  ///< [bucket][p + 1] in flat elements, or empty for even slices
  WireView wire;

  /// The job of one bucket. `slices` holds its edges, and must outlive its start.
  SliceJob job(size_t bucket, std::vector<int64_t>& slices) const;
};

/// All-reduces of buckets that end at these boundaries (ascending end offsets of the parameters;
/// none: one bucket). Each bucket has at least `bucket_bytes`; 0: usual_bucket_bytes.
BucketedCollective all_reduce_step(const Tensor& flat, std::span<const int64_t> boundaries,
                                   size_t bucket_bytes = kBucketBytes, const WireView& wire = {});
/// One half of an all-reduce, by the buckets and slices of a partition.
BucketedCollective half_step(const Tensor& flat, Phases phases, const Partition& partition,
                             const WireView& wire = {});

struct BucketOptions {
  bool overlap = true;  ///< false: everything runs in `finish`
  int in_flight = 2;    ///< concurrent reductions; each has its own staging memory
  PieceOptions pieces = {};
};

/// Texts for traces and errors.
struct BucketText {
  std::string_view span;   ///< "bucket" in "bucket 3"
  std::string_view doing;  ///< for PeerLost
};
inline constexpr BucketText kGradientText{"bucket", "summing gradients over all ranks"};
inline constexpr BucketText kValueText{"gather", "gathering values from all ranks"};

class HostBuckets {
 public:
  /// Creates a reduction; empty: sra, which needs no memory to gather without a wire.
  using MakeReduction = std::function<std::unique_ptr<Reduction>(Communicator&, Arena&)>;

  HostBuckets(Communicator& comm, Arena& arena, const BucketOptions& options = {},
              const BucketText& text = kGradientText, const MakeReduction& make = {});

  /// The previous step must be finished.
  void begin(BucketedCollective step);
  /// Elements [0, end) are final: all of them, or this rank's slices of them to be gathered. `end`
  /// never decreases.
  void ready(int64_t end);
  /// Advances the buckets in flight, without waiting; call it regularly between kernels.
  void progress();
  /// All elements are final: waits for all buckets. Throws PeerLost.
  void finish();

  /// The current step; no buckets with one rank.
  const BucketedCollective& step() const { return step_; }

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
  bool overlap_;
  BucketText text_;
  BucketedCollective step_;
  std::vector<int64_t> slices_;  ///< edges of the bucket started last
  int64_t final_ = 0;            ///< elements known to be final
  size_t ready_buckets_ = 0;     ///< buckets
  size_t started_ = 0;           ///< buckets
  size_t completed_ = 0;         ///< buckets
  double last_end_ = 0;          ///< seconds, of the last span
  std::vector<Slot> slots_;
};

}  // namespace espalier::parallel
