#include "parallel/reduction/bucketer.h"

#include <algorithm>

#include "parallel/reduction/flat.h"
#include "parallel/reduction/registry.h"

namespace espalier::parallel {

namespace {

std::vector<std::unique_ptr<Reduction>> make_reductions(
    Communicator& comm, Arena& arena, const BucketOptions& options,
    const GradientBuckets::MakeReduction& make) {
  require(options.in_flight >= 1, "at least one reduction at a time", options.in_flight);
  std::vector<std::unique_ptr<Reduction>> reductions;
  for (int i = 0; comm.size() > 1 && i < options.in_flight; ++i) {
    reductions.push_back(make ? make(comm, arena)
                              : make_reduction("sra", comm, arena, options.pieces));
  }
  return reductions;
}

}  // namespace

GradientBuckets::GradientBuckets(Communicator& comm, Arena& arena, const BucketOptions& options,
                                 const MakeReduction& make)
    : options_(options),
      pipeline_(comm, make_reductions(comm, arena, options, make),
                {.span = "bucket", .doing = "summing gradients over all ranks"}) {}

void GradientBuckets::begin(const Tensor& flat, std::span<const int64_t> boundaries,
                            const WireView& wire) {
  pipeline_.begin(all_reduce_step(flat, boundaries, options_.bucket_bytes, wire));
  final_ = 0;
}

void GradientBuckets::begin(const Tensor& flat, const Partition& partition, const WireView& wire) {
  pipeline_.begin(half_step(flat, Phases::scatter, partition, wire));
  final_ = 0;
}

void GradientBuckets::ready(int64_t end) {
  require(end >= final_ && end <= flat_count(pipeline_.step().flat), "the final prefix only grows",
          end, final_);
  if (options_.overlap) {
    final_ = end;
    const auto complete = std::ranges::upper_bound(bucket_ends(), end);
    pipeline_.allow(static_cast<size_t>(complete - bucket_ends().begin()));
    progress();
  }
}

void GradientBuckets::finish() {
  final_ = flat_count(pipeline_.step().flat);
  pipeline_.finish();
}

}  // namespace espalier::parallel
