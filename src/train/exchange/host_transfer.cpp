#include "src/train/exchange/host_transfer.h"

#include <algorithm>

#include "parallel/reduction/powersgd/reduction.h"
#include "parallel/reduction/registry.h"
#include "src/kernels/backend.h"
#include "src/train/exchange/gradient_wire.h"
#include "src/train/exchange/low_rank_codec.h"

namespace espalier::train {
namespace {

parallel::BucketOptions bucket_options(const io::Config& config) {
  parallel::BucketOptions options;
  options.bucket_bytes = bucket_bytes(config);
  options.overlap = config.parallel.overlap;
  return options;
}

parallel::GradientBuckets::MakeReduction reduction_of(const io::Config& config,
                                                      parallel::Communicator& comm,
                                                      parallel::LowRank& low_rank) {
  const bool factors = uses_low_rank(config);
  return [name = reduction_name(config, comm), factors, &low_rank](parallel::Communicator& among,
                                                                   Arena& arena) {
    std::unique_ptr<parallel::Reduction> whole = parallel::make_reduction(name, among, arena);
    return factors ? std::make_unique<parallel::LowRankReduction>(among, arena, low_rank,
                                                                  std::move(whole))
                   : std::move(whole);
  };
}

}  // namespace

HostTransfer::HostTransfer(const io::Config& config, parallel::Communicator& replicas, Stage& stage)
    : timed_{.comm = replicas,
             .kernels = kernels::beside(stage.kernels()),
             .stream = stage.stream().host(),
             .reduction = reduction_name(config, replicas),
             .type = stage.store().gradient().dtype},
      gradient_wire_(kernels::beside(stage.kernels()), stage.stream().host()),
      value_wire_(kernels::beside(stage.kernels()), stage.stream().host()),
      low_rank_(kernels::beside(stage.kernels()), stage.stream().host()),
      buckets_(replicas, stage.store().arena().host(), bucket_options(config),
               reduction_of(config, replicas, low_rank_)),
      gather_(replicas, stage.store().arena().host(), bucket_options(config)),
      gradient_(stage.stream(), replicas.size() > 1),
      value_(stage.stream(), replicas.size() > 1) {}

void HostTransfer::follow(const Tensor& gradient) {
  gradient_.follow(gradient);
  sums_ = false;
}

void HostTransfer::sum(const Cut& cut) {
  const parallel::WireView wire{.wire = &gradient_wire_, .first = cut.first};
  if (cut.partition != nullptr) {
    buckets_.begin(gradient_.host(), *cut.partition, wire);
  } else {
    buckets_.begin(gradient_.host(), cut.boundaries, wire);
  }
  sums_ = true;
}

void HostTransfer::ready(int64_t end) {
  gradient_.fetch(end);
  if (sums_) {
    buckets_.ready(gradient_.arrived());
  }
}

const Tensor& HostTransfer::on_host() {
  gradient_.fetch_all();
  return gradient_.host();
}

void HostTransfer::finish() {
  gradient_.fetch_all();
  buckets_.finish();
  gradient_.give_back();
}

void HostTransfer::gather(const Tensor& value, const parallel::Partition& partition, bool coded) {
  value_.follow(value);
  partition_ = &partition;
  gather_.begin(value_.host(), partition, {.wire = coded ? &value_wire_ : nullptr});
}

void HostTransfer::stepped(int64_t end) {
  value_.fetch(end);
  const auto open = std::ranges::upper_bound(partition_->ends, value_.arrived());
  if (open != partition_->ends.begin()) {
    gather_.ready(static_cast<size_t>(open - partition_->ends.begin()) - 1);
  }
}

void HostTransfer::finish_gather() {
  value_.fetch_all();
  gather_.finish();
  value_.give_back();
}

std::unique_ptr<TimedSum> HostTransfer::timed_sum(const kernels::WireFormat& format,
                                                  int64_t elements) {
  return std::make_unique<HostTimedSum>(timed_, format, elements);
}

}  // namespace espalier::train
