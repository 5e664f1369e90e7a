#include "parallel/reduction/device/buckets.h"

namespace espalier::parallel {

void DeviceBuckets::ready(int64_t end) {
  while (overlap_ && done_ < step_.ends.size() && step_.ends[done_] <= end) {
    run(done_++);
  }
}

void DeviceBuckets::finish() {
  while (done_ < step_.ends.size()) {
    run(done_++);
  }
  link_.lead_compute();
}

void DeviceBuckets::run(size_t bucket) {
  reduction_.run(step_.job(bucket, slices_),
                 fmt::format("{} ({} {})", text_.doing, text_.span, bucket));
  link_.trace(fmt::format("{} {}", text_.span, bucket));
}

}  // namespace espalier::parallel
