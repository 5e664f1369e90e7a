#include "parallel/bucketer.h"

#include <algorithm>

#include "src/core/trace.h"

namespace espalier::parallel {

GradientBuckets::GradientBuckets(Communicator& comm, Arena& arena, const BucketOptions& options,
                                 const MakeReduction& make)
    : comm_(comm), options_(options) {
  require(options.in_flight >= 1, "at least one reduction at a time", options.in_flight);
  if (comm.size() == 1) {
    return;
  }
  slots_.resize(static_cast<size_t>(options.in_flight));
  for (Slot& slot : slots_) {
    slot.reduction =
        make ? make(comm, arena) : std::make_unique<AllReduce>(comm, arena, options.allreduce);
  }
}

void GradientBuckets::begin(std::span<float> flat, std::span<const int64_t> boundaries) {
  require(completed_ == ends_.size(), "finish the step before beginning another", completed_,
          ends_.size());
  flat_ = flat;
  final_ = 0;
  started_ = 0;
  completed_ = 0;
  last_end_ = 0;
  ends_.clear();
  if (slots_.empty() || flat.empty()) {
    return;
  }
  const auto total = static_cast<int64_t>(flat.size());
  const auto least = static_cast<int64_t>(options_.bucket_bytes / sizeof(float));
  int64_t cut = 0;
  for (const int64_t end : boundaries) {
    require(end >= cut && end <= total, "boundaries ascend within the gradient", end, cut, total);
    if (end < total && end > cut && end - cut >= least) {
      ends_.push_back(end);
      cut = end;
    }
  }
  ends_.push_back(total);
}

void GradientBuckets::start(Slot& slot) {
  slot.bucket = started_++;
  slot.begin = now_seconds();
  slot.busy = true;
  const int64_t from = slot.bucket == 0 ? 0 : ends_[slot.bucket - 1];
  const int64_t count = ends_[slot.bucket] - from;
  slot.reduction->start(flat_.subspan(static_cast<size_t>(from), static_cast<size_t>(count)),
                        static_cast<int>(slot.bucket % kReductionNumbers));
}

void GradientBuckets::complete(Slot& slot) {
  slot.busy = false;
  ++completed_;
  if (Trace* trace = Trace::current(); trace != nullptr) {
    const double end = now_seconds();
    trace->add(Track::allreduce, fmt::format("bucket {}", slot.bucket),
               std::max(slot.begin, last_end_), end);
    last_end_ = end;
  }
}

Progress GradientBuckets::advance() {
  bool moved = false;
  for (Slot& slot : slots_) {
    if (!slot.busy && started_ < ends_.size() && ends_[started_] <= final_) {
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
  if (completed_ == ends_.size()) {
    return Progress::done;
  }
  return moved ? Progress::moved : Progress::stuck;
}

void GradientBuckets::ready(int64_t end) {
  require(end >= final_ && end <= static_cast<int64_t>(flat_.size()), "the final prefix only grows",
          end, final_);
  if (options_.overlap) {
    final_ = end;
    progress();
  }
}

void GradientBuckets::progress() {
  while (advance() == Progress::moved) {
  }
}

void GradientBuckets::finish() {
  final_ = static_cast<int64_t>(flat_.size());
  comm_.wait_until([this] { return advance(); }, [this] { return missing(); },
                   "summing gradients over all ranks");
}

std::vector<int> GradientBuckets::missing() const {
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

}  // namespace espalier::parallel
