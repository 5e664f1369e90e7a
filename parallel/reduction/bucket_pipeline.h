#pragma once
// The same job for the buckets of one flat array: started in order as the caller allows, up to
// `in_flight` at once, moved only inside calls (there is no thread behind it). What gradients
// (bucketer.h) and values (parameter_gather.h) share. With one rank nothing is copied or sent.
//
// Emits one span a bucket on Track::allreduce; it begins when the bucket started or the one before
// it ended, so spans do not overlap.
#include <memory>
#include <string_view>
#include <vector>

#include "parallel/reduction/partition.h"
#include "parallel/reduction/reduction.h"

namespace espalier::parallel {

/// What a pipeline does, in words.
struct PipelineText {
  std::string_view span;   ///< "bucket" in "bucket 3"
  std::string_view doing;  ///< "summing gradients over all ranks", for PeerLost
};

class BucketPipeline {
 public:
  /// One reduction a bucket in flight; none when there is one rank.
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
  /// The step before must be finished.
  void begin(Step step);
  /// The first `buckets` may run; never falls.
  void allow(size_t buckets);
  /// Moves what is in flight, without waiting.
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
/// none: one bucket), each of `bucket_bytes` at least, 0: usual_bucket_bytes.
BucketPipeline::Step all_reduce_step(const Tensor& flat, std::span<const int64_t> boundaries,
                                     size_t bucket_bytes, const WireView& wire);
/// One half of them, by the buckets and slices of a partition.
BucketPipeline::Step half_step(const Tensor& flat, Phases phases, const Partition& partition,
                               const WireView& wire);

}  // namespace espalier::parallel
