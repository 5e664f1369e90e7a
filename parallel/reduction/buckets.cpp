#include "parallel/reduction/buckets.h"

#include <algorithm>
#include <utility>

#include "parallel/flat.h"
#include "parallel/reduction/registry.h"
#include "src/core/trace.h"

namespace espalier::parallel {

SliceJob BucketedCollective::job(size_t bucket, std::vector<int64_t>& slices) const {
  const int64_t from = bucket == 0 ? 0 : ends[bucket - 1];
  const size_t width = edges.size() / ends.size();
  slices.clear();
  for (const int64_t edge : std::span(edges).subspan(bucket * width, width)) {
    slices.push_back(edge - from);
  }
  return {.data = flat.elements(from, ends[bucket] - from),
          .phases = phases,
          .edges = slices,
          .number = static_cast<int>(bucket % kReductionNumbers),
          .wire = wire.wire,
          .first = wire.first + from};
}

BucketedCollective all_reduce_step(const Tensor& flat, std::span<const int64_t> boundaries,
                                   size_t bucket_bytes, const WireView& wire) {
  const size_t bytes =
      bucket_bytes > 0 ? bucket_bytes : usual_bucket_bytes(flat ? flat.bytes() : 0);
  const auto least = static_cast<int64_t>(bytes / size_of(flat.dtype));
  return {.flat = flat,
          .ends = cut_buckets(boundaries, flat_count(flat), least),
          .edges = {},
          .wire = wire};
}

BucketedCollective half_step(const Tensor& flat, Phases phases, const Partition& partition,
                             const WireView& wire) {
  return {.flat = flat,
          .phases = phases,
          .ends = partition.ends,
          .edges = partition.edges,
          .wire = wire};
}

void Buckets::begin(BucketedCollective step) {
  require(done_ == step_.ends.size(), "finish the step before beginning another", done_,
          step_.ends.size());
  const int64_t count = flat_count(step.flat);
  require((step.ends.empty() ? 0 : step.ends.back()) == count, "buckets cover the flat array",
          step.ends.size(), count);
  require(step.edges.empty() ||
              step.edges.size() == step.ends.size() * (static_cast<size_t>(ranks_) + 1),
          "slices for this number of ranks", step.edges.size(), step.ends.size(), ranks_);
  step_ = std::move(step);
  if (ranks_ == 1) {
    step_.ends.clear();
  }
  done_ = 0;
}

const Tensor& Buckets::on_host(const Tensor& flat) {
  copy_.begin(flat);
  copy_.fetch_all();
  on_host_ = flat;
  return copy_.host();
}

HostBuckets::HostBuckets(Communicator& comm, Arena& arena, const BucketOptions& options,
                         const BucketText& text)
    : Buckets(comm.size(), options, text), comm_(comm) {
  require(options.in_flight >= 1, "at least one bucket at a time", options.in_flight);
  for (int i = 0; comm.size() > 1 && i < options.in_flight; ++i) {
    slots_.push_back({.reduction = make_reduction(options.reduction, comm, arena, options.pieces)});
  }
}

void HostBuckets::reserve(const BucketedCollective& step) {
  for (size_t bucket = 0; bucket < step.ends.size() && !slots_.empty(); ++bucket) {
    slots_[bucket % slots_.size()].reduction->reserve(step.job(bucket, slices_));
  }
}

void HostBuckets::begin(BucketedCollective step) {
  Buckets::begin(std::move(step));
  const Tensor fetched = std::exchange(on_host_, Tensor());
  if (fetched.data != step_.flat.data || fetched.shape != step_.flat.shape) {
    copy_.begin(step_.flat);
  }
  step_.flat = copy_.host();
  final_ = 0;
  ready_buckets_ = 0;
  started_ = 0;
  last_end_ = 0;
}

void HostBuckets::ready(int64_t end) {
  require(end >= final_ && end <= flat_count(step_.flat), "the final prefix only grows", end,
          final_);
  copy_.fetch(end);
  if (overlap_) {
    final_ = copy_.arrived();
    const auto complete = std::ranges::upper_bound(step_.ends, final_);
    ready_buckets_ = static_cast<size_t>(complete - step_.ends.begin());
    while (advance() == Progress::moved) {
    }
  }
}

void HostBuckets::complete(Slot& slot) {
  slot.busy = false;
  ++done_;
  if (Trace* trace = Trace::current(); trace != nullptr) {
    const double end = now_seconds();
    trace->add(Track::allreduce, fmt::format("{} {}", text_.span, slot.bucket),
               std::max(slot.begin, last_end_), end);
    last_end_ = end;
  }
}

Progress HostBuckets::advance() {
  bool moved = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    // A bucket uses the same slot on all ranks: a reduction may have its own communicators.
    const bool next = started_ % slots_.size() == i;
    if (!slot.busy && next && started_ < ready_buckets_) {
      slot.bucket = started_++;
      slot.begin = now_seconds();
      slot.busy = true;
      slot.reduction->start(step_.job(slot.bucket, slices_));
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
  if (done_ == step_.ends.size()) {
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

void HostBuckets::finish() {
  copy_.fetch_all();
  final_ = flat_count(step_.flat);
  ready_buckets_ = step_.ends.size();
  comm_.wait_until([this] { return advance(); }, [this] { return missing(); }, text_.doing);
  copy_.write_back();
}

std::vector<int> HostBuckets::missing() const {
  std::vector<int> ranks;
  for (const Slot& slot : slots_) {
    if (slot.busy) {
      const std::vector<int> more = slot.reduction->missing();
      ranks.insert(ranks.end(), more.begin(), more.end());
    }
  }
  return distinct(std::move(ranks));
}

}  // namespace espalier::parallel
