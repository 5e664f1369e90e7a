#include "parallel/reduction/bucket_pipeline.h"

#include <algorithm>
#include <utility>

#include "parallel/reduction/flat.h"
#include "src/core/trace.h"

namespace espalier::parallel {

BucketPipeline::BucketPipeline(Communicator& comm,
                               std::vector<std::unique_ptr<Reduction>> reductions,
                               const PipelineText& text)
    : comm_(comm), text_(text), slots_(reductions.size()) {
  require(comm.size() == 1 || !reductions.empty(), "at least one bucket at a time", comm.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].reduction = std::move(reductions[i]);
  }
}

void BucketPipeline::begin(Step step) {
  require(completed_ == step_.ends.size(), "finish the step before beginning another", completed_,
          step_.ends.size());
  const int64_t count = flat_count(step.flat);
  require((step.ends.empty() ? 0 : step.ends.back()) == count, "buckets cover the flat array",
          step.ends.size(), count);
  require(step.edges.empty() ||
              step.edges.size() == step.ends.size() * (static_cast<size_t>(comm_.size()) + 1),
          "slices for this number of ranks", step.edges.size(), step.ends.size(), comm_.size());
  step_ = std::move(step);
  if (comm_.size() == 1) {
    step_.ends.clear();
  }
  allowed_ = 0;
  started_ = 0;
  completed_ = 0;
  last_end_ = 0;
}

void BucketPipeline::start(Slot& slot) {
  slot.bucket = started_++;
  slot.begin = now_seconds();
  slot.busy = true;
  const int64_t from = slot.bucket == 0 ? 0 : step_.ends[slot.bucket - 1];
  slices_.clear();
  if (!step_.edges.empty()) {
    const auto width = static_cast<size_t>(comm_.size()) + 1;
    for (const int64_t edge : std::span(step_.edges).subspan(slot.bucket * width, width)) {
      slices_.push_back(edge - from);
    }
  }
  slot.reduction->start({.data = flat_part(step_.flat, from, step_.ends[slot.bucket] - from),
                         .phases = step_.phases,
                         .edges = slices_,
                         .number = static_cast<int>(slot.bucket % kReductionNumbers),
                         .wire = step_.wire.wire,
                         .first = step_.wire.first + from});
}

void BucketPipeline::complete(Slot& slot) {
  slot.busy = false;
  ++completed_;
  if (Trace* trace = Trace::current(); trace != nullptr) {
    const double end = now_seconds();
    trace->add(Track::allreduce, fmt::format("{} {}", text_.span, slot.bucket),
               std::max(slot.begin, last_end_), end);
    last_end_ = end;
  }
}

Progress BucketPipeline::advance() {
  bool moved = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    // A bucket uses the same slot on all ranks: a reduction may have its own communicators.
    const bool next = started_ % slots_.size() == i;
    if (!slot.busy && next && started_ < std::min(allowed_, step_.ends.size())) {
      start(slot);
      moved = true;
    }
    if (slot.busy) {
      const Progress progress = slot.reduction->advance();
      moved |= progress != Progress::stuck;
      if (progress == Progress::done) {
        complete(slot);
      }
    }
  }
  if (completed_ == step_.ends.size()) {
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

void BucketPipeline::allow(size_t buckets) {
  require(buckets >= allowed_, "what may run never shrinks", buckets, allowed_);
  allowed_ = buckets;
}

void BucketPipeline::progress() {
  while (advance() == Progress::moved) {
  }
}

void BucketPipeline::finish() {
  allowed_ = step_.ends.size();
  comm_.wait_until([this] { return advance(); }, [this] { return missing(); }, text_.doing);
}

std::vector<int> BucketPipeline::missing() const {
  std::vector<int> ranks;
  for (const Slot& slot : slots_) {
    if (slot.busy) {
      const std::vector<int> more = slot.reduction->missing();
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
  }
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  return ranks;
}

BucketPipeline::Step all_reduce_step(const Tensor& flat, std::span<const int64_t> boundaries,
                                     size_t bucket_bytes, const WireView& wire) {
  const size_t bytes =
      bucket_bytes > 0 ? bucket_bytes : usual_bucket_bytes(flat ? flat.bytes() : 0);
  const auto least = static_cast<int64_t>(bytes / size_of(flat.dtype));
  return {.flat = flat,
          .phases = Phases::both,
          .ends = cut_buckets(boundaries, flat_count(flat), least),
          .edges = {},
          .wire = wire};
}

BucketPipeline::Step half_step(const Tensor& flat, Phases phases, const Partition& partition,
                               const WireView& wire) {
  return {.flat = flat,
          .phases = phases,
          .ends = partition.ends,
          .edges = partition.edges,
          .wire = wire};
}

}  // namespace espalier::parallel
