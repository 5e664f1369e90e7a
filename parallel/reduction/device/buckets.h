#pragma once
// What GradientBuckets and ParameterGather (bucketer.h, parameter_gather.h) do, in the memory of
// GPUs: the buckets of a flat array, each as soon as kernels that fill it have been asked for. It
// follows them in the link's queue, so nobody waits: not for kernels, not for messages, nor for the
// sums. Emits the spans of BucketPipeline, as NcclLink::trace sees them.
#include "parallel/reduction/bucket_pipeline.h"
#include "parallel/reduction/device/reduction.h"
#include "parallel/transport/device/nccl_link.h"

namespace espalier::parallel {

class DeviceBuckets {
 public:
  /// `overlap` = false: everything is asked for in `finish`. `text`: see BucketPipeline.
  DeviceBuckets(NcclLink& link, DeviceSum& reduction, bool overlap, const PipelineText& text)
      : link_(link), reduction_(reduction), overlap_(overlap), text_(text) {}

  /// The step before must be finished.
  void begin(BucketPipeline::Step step);
  /// What makes elements [0, end) final has been asked for. `end` never decreases.
  void ready(int64_t end);
  /// The same of all. Kernels asked for from now on find the results.
  void finish();

 private:
  void run(size_t bucket);

  NcclLink& link_;
  DeviceSum& reduction_;
  bool overlap_;
  PipelineText text_;
  BucketPipeline::Step step_;
  size_t asked_ = 0;  ///< buckets
};

}  // namespace espalier::parallel
