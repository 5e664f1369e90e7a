#include "parallel/reduction/device/buckets.h"

#include <algorithm>
#include <utility>

#include "parallel/reduction/flat.h"

namespace espalier::parallel {

void DeviceBuckets::begin(BucketedCollective step) {
  require(enqueued_ == step_.ends.size(), "finish the step before beginning another", enqueued_,
          step_.ends.size());
  require((step.ends.empty() ? 0 : step.ends.back()) == flat_count(step.flat),
          "buckets cover the flat array", step.ends.size(), flat_count(step.flat));
  step_ = std::move(step);
  enqueued_ = 0;
}

void DeviceBuckets::ready(int64_t end) {
  while (overlap_ && enqueued_ < step_.ends.size() && step_.ends[enqueued_] <= end) {
    run(enqueued_++);
  }
}

void DeviceBuckets::finish() {
  while (enqueued_ < step_.ends.size()) {
    run(enqueued_++);
  }
  link_.lead_compute();
}

void DeviceBuckets::run(size_t bucket) {
  reduction_.run(step_, bucket, fmt::format("{} ({} {})", text_.doing, text_.span, bucket));
  link_.trace(fmt::format("{} {}", text_.span, bucket));
}

}  // namespace espalier::parallel
