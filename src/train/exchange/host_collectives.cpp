#include "src/train/exchange/host_collectives.h"

#include "parallel/reduction/powersgd/reduction.h"
#include "parallel/reduction/registry.h"
#include "src/kernels/backend.h"
#include "src/train/exchange/gradient_wire.h"
#include "src/train/exchange/low_rank_codec.h"

namespace espalier::train {
namespace {

parallel::HostBuckets::MakeReduction reduction_of(const io::Config& config,
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

HostCollectives::HostCollectives(const io::Config& config, parallel::Communicator& replicas,
                                 Stage& stage)
    : timing_{.comm = replicas,
              .kernels = kernels::beside(stage.kernels()),
              .stream = stage.stream().host(),
              .reduction = reduction_name(config, replicas),
              .type = stage.store().gradient().dtype},
      gradient_wire_(kernels::beside(stage.kernels()), stage.stream().host()),
      value_wire_(kernels::beside(stage.kernels()), stage.stream().host()),
      low_rank_(kernels::beside(stage.kernels()), stage.stream().host()),
      bucket_bytes_(bucket_bytes(config)),
      buckets_(replicas, stage.store().arena().host(), {.overlap = config.parallel.overlap},
               parallel::kGradientText, reduction_of(config, replicas, low_rank_)),
      gather_(replicas, stage.store().arena().host(), {.overlap = config.parallel.overlap},
              parallel::kValueText),
      gradient_(stage.stream(), replicas.size() > 1),
      value_(stage.stream(), replicas.size() > 1) {}

void HostCollectives::begin(const Tensor& gradient) {
  gradient_.begin(gradient);
  reducing_ = false;
}

void HostCollectives::start_reduce(const Buckets& buckets) {
  const parallel::WireView wire{.wire = &gradient_wire_, .first = buckets.first};
  buckets_.begin(
      buckets.partition != nullptr
          ? half_step(gradient_.host(), parallel::Phases::scatter, *buckets.partition, wire)
          : all_reduce_step(gradient_.host(), buckets.boundaries, bucket_bytes_, wire));
  reducing_ = true;
}

void HostCollectives::gradient_ready(int64_t end) {
  gradient_.fetch(end);
  if (reducing_) {
    buckets_.ready(gradient_.arrived());
  }
}

const Tensor& HostCollectives::gradient_on_host() {
  gradient_.fetch_all();
  return gradient_.host();
}

void HostCollectives::finish_reduce() {
  gradient_.fetch_all();
  buckets_.finish();
  gradient_.write_back();
}

void HostCollectives::start_gather(const Tensor& value, const parallel::Partition& partition,
                                   bool coded) {
  value_.begin(value);
  gather_.begin(half_step(value_.host(), parallel::Phases::gather, partition,
                          {.wire = coded ? &value_wire_ : nullptr}));
}

void HostCollectives::value_ready(int64_t end) {
  value_.fetch(end);
  gather_.ready(value_.arrived());
}

void HostCollectives::finish_gather() {
  value_.fetch_all();
  gather_.finish();
  value_.write_back();
}

std::unique_ptr<TimedReduction> HostCollectives::timed_reduction(const kernels::WireFormat& format,
                                                                 int64_t elements) {
  return std::make_unique<HostTimedReduction>(timing_, format, elements);
}

}  // namespace espalier::train
