#include "parallel/reduction/parameter_gather.h"

#include "parallel/reduction/registry.h"

namespace espalier::parallel {

namespace {

std::vector<std::unique_ptr<Reduction>> make_gathers(Communicator& comm, Arena& arena,
                                                     const BucketOptions& options) {
  require(options.in_flight >= 1, "at least one bucket at a time", options.in_flight);
  std::vector<std::unique_ptr<Reduction>> gathers;
  for (int i = 0; comm.size() > 1 && i < options.in_flight; ++i) {
    gathers.push_back(make_reduction("sra", comm, arena, options.pieces));
  }
  return gathers;
}

}  // namespace

ParameterGather::ParameterGather(Communicator& comm, Arena& arena, const BucketOptions& options)
    : overlap_(options.overlap),
      pipeline_(comm, make_gathers(comm, arena, options),
                {.span = "gather", .doing = "gathering values from all ranks"}) {}

void ParameterGather::begin(const Tensor& flat, const Partition& partition, const WireView& wire) {
  pipeline_.begin(half_step(flat, Phases::gather, partition, wire));
  buckets_ = partition.buckets();
}

void ParameterGather::ready(size_t bucket) {
  require(bucket < buckets_, "a bucket of this step", bucket, buckets_);
  if (overlap_) {
    pipeline_.allow(bucket + 1);
    progress();
  }
}

}  // namespace espalier::parallel
