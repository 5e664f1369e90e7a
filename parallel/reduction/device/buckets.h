#pragma once
// HostBuckets (reduction/buckets.h) for GPU memory: enqueues each bucket of a flat array as soon as
// the kernels that fill it are enqueued. The bucket follows them in the link's queue, so the host
// waits neither for kernels nor for messages nor for sums. Emits the same spans, with the times of
// NcclLink::trace.
#include "parallel/reduction/buckets.h"
#include "parallel/reduction/device/reduction.h"
#include "parallel/transport/device/nccl_link.h"

namespace espalier::parallel {

class DeviceBuckets {
 public:
  /// `overlap` = false: `finish` enqueues everything.
  DeviceBuckets(NcclLink& link, DeviceReduction& reduction, bool overlap, const BucketText& text)
      : link_(link), reduction_(reduction), overlap_(overlap), text_(text) {}

  /// The previous step must be finished.
  void begin(BucketedCollective step);
  /// The kernels that make elements [0, end) final are enqueued. `end` never decreases.
  void ready(int64_t end);
  /// As `ready`, for the whole array. Kernels enqueued from now on see the results.
  void finish();

 private:
  void run(size_t bucket);

  NcclLink& link_;
  DeviceReduction& reduction_;
  bool overlap_;
  BucketText text_;
  BucketedCollective step_;
  size_t enqueued_ = 0;  ///< buckets
};

}  // namespace espalier::parallel
