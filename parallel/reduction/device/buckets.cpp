#include "parallel/reduction/device/buckets.h"

#include <algorithm>
#include <utility>

#include "parallel/reduction/flat.h"

namespace espalier::parallel {

void DeviceBuckets::begin(BucketPipeline::Step step) {
  require(asked_ == step_.ends.size(), "finish the step before beginning another", asked_,
          step_.ends.size());
  require((step.ends.empty() ? 0 : step.ends.back()) == flat_count(step.flat),
          "buckets cover the flat array", step.ends.size(), flat_count(step.flat));
  step_ = std::move(step);
  asked_ = 0;
}

void DeviceBuckets::ready(int64_t end) {
  while (overlap_ && asked_ < step_.ends.size() && step_.ends[asked_] <= end) {
    run(asked_++);
  }
}

void DeviceBuckets::finish() {
  while (asked_ < step_.ends.size()) {
    run(asked_++);
  }
  link_.lead_compute();
}

void DeviceBuckets::run(size_t bucket) {
  reduction_.run(step_, bucket, fmt::format("{} ({} {})", text_.doing, text_.span, bucket));
  link_.trace(fmt::format("{} {}", text_.span, bucket));
}

}  // namespace espalier::parallel
