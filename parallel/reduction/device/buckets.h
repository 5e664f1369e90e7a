#pragma once
// Buckets (reduction/buckets.h) of arrays in GPU memory: enqueues a bucket as soon as the kernels
// that fill it are enqueued. The bucket follows them in the link's queue, so the host waits neither
// for kernels nor for messages nor for sums. Emits the same spans as HostBuckets, with the times of
// NcclLink::trace.
#include "parallel/reduction/buckets.h"
#include "parallel/reduction/device/reduction.h"

namespace espalier::parallel {

class DeviceBuckets final : public Buckets {
 public:
  /// Of `options` it uses `overlap` and `compute`. Link and reduction must outlive it.
  DeviceBuckets(DeviceLink& link, DeviceReduction& reduction, const BucketOptions& options,
                const BucketText& text)
      : Buckets(link.size(), options, text), link_(link), reduction_(reduction) {}

  void ready(int64_t end) override;
  void finish() override;

 private:
  void run(size_t bucket);

  DeviceLink& link_;
  DeviceReduction& reduction_;
  std::vector<int64_t> slices_;  ///< edges of the bucket enqueued last
};

}  // namespace espalier::parallel
