#pragma once
// Runs one kind of job for the buckets of one flat array. Buckets start in order as the caller
// allows, up to `in_flight` at once, and make progress only inside calls (no thread). Gradients
// (bucketer.h) and values (parameter_gather.h) both use it. With one rank nothing is copied or
// sent.
//
// Emits one span a bucket on Track::allreduce. A span begins when its bucket started or the
// previous one ended, whichever is later, so spans do not overlap.
// it ended, so spans do not overlap.
#include <memory>
#include <string_view>
#include <vector>

#include "parallel/reduction/partition.h"
#include "parallel/reduction/reduction.h"

namespace espalier::parallel {

/// Texts that describe a pipeline.
struct PipelineText {
  std::string_view span;   ///< "bucket" in "bucket 3"
  std::string_view doing;  ///< "summing gradients over all ranks", for PeerLost
};

class BucketPipeline {
 public:
  /// One reduction for each bucket in flight; none with one rank.
  BucketPipeline(Communicator& comm, std::vector<std::unique_ptr<Reduction>> reductions,
                 const PipelineText& text);

  /// A step: `edges` [bucket][p + 1] in flat elements, or empty for even slices.
  struct Step {
    Tensor flat;
    Phases phases = Phases::both;
    std::vector<int64_t> ends;
    std::vector<int64_t> edges;
    WireView wire;
  };
  /// The previous step must be finished.
  void begin(Step step);
  /// The first `buckets` may run; never decreases.
  void allow(size_t buckets);
  /// Advances the buckets in flight, without waiting.
  void progress();
  /// Allows all buckets and waits for them; throws PeerLost.
  void finish();

  const Step& step() const { return step_; }

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
  PipelineText text_;
  Step step_;
  std::vector<int64_t> slices_;  ///< edges of one bucket, from its begin
  size_t allowed_ = 0;           ///< buckets
  size_t started_ = 0;           ///< buckets
  size_t completed_ = 0;         ///< buckets
  double last_end_ = 0;          ///< seconds, of the last span
  std::vector<Slot> slots_;
};

/// All-reduces of buckets that end at these boundaries (ascending end offsets of the parameters;
/// none: one bucket). Each bucket has at least `bucket_bytes`; 0: usual_bucket_bytes.
BucketPipeline::Step all_reduce_step(const Tensor& flat, std::span<const int64_t> boundaries,
                                     size_t bucket_bytes, const WireView& wire);
/// One half of an all-reduce, by the buckets and slices of a partition.
BucketPipeline::Step half_step(const Tensor& flat, Phases phases, const Partition& partition,
                               const WireView& wire);

}  // namespace espalier::parallel
