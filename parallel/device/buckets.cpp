#include "parallel/device/buckets.h"

#include <algorithm>
#include <utility>

#include "parallel/flat.h"

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
  const int64_t from = bucket == 0 ? 0 : step_.ends[bucket - 1];
  std::vector<int64_t> edges;
  if (!step_.edges.empty()) {
    const auto width = static_cast<size_t>(link_.size()) + 1;
    for (const int64_t edge : std::span(step_.edges).subspan(bucket * width, width)) {
      edges.push_back(edge - from);
    }
  }
  reduction_.run({.data = step_.flat.elements(from, step_.ends[bucket] - from),
                  .phases = step_.phases,
                  .edges = edges,
                  .wire = step_.wire.wire,
                  .first = step_.wire.first + from},
                 fmt::format("{} ({} {})", text_.doing, text_.span, bucket));
}

}  // namespace espalier::parallel
