#pragma once
// Sums a flat array (fp32, bf16 or fp16) over ranks in buckets, while kernels still compute it:
//
//   buckets.begin(all_reduce_step(flat, boundaries));
//   for each layer { enqueue kernels; buckets.ready(end); }   elements [0, end) are final
//   buckets.finish();                                         later kernels read the sums
//
// HostBuckets sends by a communicator, DeviceBuckets (device/buckets.h) from device to device.
// Elements become final in ascending order: gradients in backward, values in the optimizer step.
// Buckets are contiguous slices that end at parameters. A bucket starts once its elements are
// final. A step is one of:
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
#include <memory>
#include <string_view>
#include <vector>

#include "parallel/partition.h"
#include "parallel/reduction/host_copy.h"
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
  bool overlap = true;                 ///< false: everything runs in `finish`
  int in_flight = 2;                   ///< concurrent reductions; each has its own staging memory
  std::string_view reduction = "sra";  ///< registry.h; sra gathers without a wire in no memory
  PieceOptions pieces = {};
  Stream* compute = nullptr;  ///< of arrays on a device, must outlive the buckets
};

/// Texts for traces and errors.
struct BucketText {
  std::string_view span;   ///< "bucket" in "bucket 3"
  std::string_view doing;  ///< for PeerLost
};
inline constexpr BucketText kGradientText{"bucket", "summing gradients over all ranks"};
inline constexpr BucketText kValueText{"gather", "gathering values from all ranks"};

class Buckets {
 public:
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;
  virtual ~Buckets() = default;

  /// The previous step must be finished.
  virtual void begin(BucketedCollective step);
  /// The kernels that make elements [0, end) final are enqueued: all of them, or this rank's slices
  /// of them to be gathered. `end` never decreases.
  virtual void ready(int64_t end) = 0;
  /// As `ready`, for the whole array. HostBuckets waits for all buckets; throws PeerLost.
  virtual void finish() = 0;

  /// The elements of an array in host memory, until the next step begins. Waits for them. The array
  /// must not change until then: HostBuckets does not copy it again for a step that sums it.
  const Tensor& on_host(const Tensor& flat);
  /// The current step; no buckets with one rank.
  const BucketedCollective& step() const { return step_; }

 protected:
  Buckets(int ranks, const BucketOptions& options, const BucketText& text)
      : overlap_(options.overlap),
        text_(text),
        copy_(ranks > 1 ? options.compute : nullptr),
        ranks_(ranks) {}

  bool overlap_;
  BucketText text_;
  HostCopy copy_;
  BucketedCollective step_;
  Tensor on_host_;   ///< the array that `copy_` has fetched for a reader since the last step
  size_t done_ = 0;  ///< buckets: completed, on a device enqueued

 private:
  int ranks_;
};

/// Up to `in_flight` buckets run at once, and make progress only inside calls (no thread). An array
/// on a device has a pinned copy.
class HostBuckets final : public Buckets {
 public:
  /// Collective. `arena`: of host memory.
  HostBuckets(Communicator& comm, Arena& arena, const BucketOptions& options = {},
              const BucketText& text = kGradientText);

  /// Allocates what the buckets of such a step need; not the copy of an array on a device.
  void reserve(const BucketedCollective& step);
  void begin(BucketedCollective step) override;
  void ready(int64_t end) override;
  void finish() override;

 private:
  struct Slot {
    std::unique_ptr<Reduction> reduction;
    size_t bucket = 0;
    double begin = 0;  ///< seconds
    bool busy = false;
  };

  Progress advance();
  void complete(Slot& slot);
  std::vector<int> missing() const;

  Communicator& comm_;
  std::vector<int64_t> slices_;  ///< edges of the bucket started last
  int64_t final_ = 0;            ///< elements known to be final
  size_t ready_buckets_ = 0;     ///< buckets
  size_t started_ = 0;           ///< buckets
  double last_end_ = 0;          ///< seconds, of the last span
  std::vector<Slot> slots_;
};

}  // namespace espalier::parallel
