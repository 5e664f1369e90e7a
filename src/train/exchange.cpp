#include "src/train/exchange.h"

#include <algorithm>
#include <utility>

#include "parallel/collectives.h"
#include "parallel/reduction/by_name.h"
#include "parallel/reduction/low_rank.h"
#include "sparse/value_copy.h"
#include "src/core/rng.h"
#include "src/core/trace.h"
#include "src/kernels/backend.h"
#include "src/train/gradient_wire.h"
#include "src/train/low_rank_codec.h"
#include "src/train/value_wire.h"

namespace espalier::train {
namespace {

size_t bucket_bytes(const io::Config& config) {
  return static_cast<size_t>(config.parallel.bucket_mb * 1024 * 1024);
}

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

bool shares_optimizer(const io::Config& config, int ranks) {
  return config.parallel.zero != 0 && ranks > 1;
}

Shards::Options shard_options(const io::Config& config) {
  return {.bucket_bytes = bucket_bytes(config),
          .element_bytes = size_of(store_options(config, true).gradient)};
}

}  // namespace

std::shared_ptr<Shards> make_shards(const io::Config& config, parallel::Communicator& comm) {
  return shares_optimizer(config, comm.size())
             ? std::make_shared<Shards>(comm, shard_options(config))
             : nullptr;
}

std::shared_ptr<sparse::Sharding> plan_shards(const io::Config& config, int rank, int ranks) {
  return shares_optimizer(config, ranks)
             ? std::make_shared<Shards>(rank, ranks, shard_options(config))
             : nullptr;
}

Exchange::Exchange(const io::Config& config, Ranks& ranks, Stage& stage,
                   std::shared_ptr<Shards> shards)
    : config_(config),
      ranks_(ranks),
      stage_(stage),
      shards_(std::move(shards)),
      codecs_(config, stage, ranks.data()),
      wire_(kernels::beside(stage.kernels()), stage.stream().host()),
      values_(kernels::beside(stage.kernels()), stage.stream().host()),
      low_rank_(kernels::beside(stage.kernels()), stage.stream().host()),
      buckets_(ranks.data(), stage.store().arena().host(), bucket_options(config),
               reduction_of(config, ranks.data(), low_rank_)),
      gather_(ranks.data(), stage.store().arena().host(), bucket_options(config)),
      gradient_(stage.stream(), ranks.data().size() > 1),
      value_(stage.stream(), ranks.data().size() > 1) {
  if (uses_low_rank(config)) {
    set_low_rank(low_rank_, config, stage, 0);
  }
}

/// Of random rounding: 0 where there is none.
uint64_t Exchange::key(int64_t step) const {
  if (config_.parallel.rounding != "stochastic") {
    return 0;
  }
  const uint64_t seed = mix(config_.train.seed, static_cast<uint64_t>(step));
  return mix(seed, static_cast<uint64_t>(ranks_.world().rank()) + 1);
}

/// Masks and choices may have changed since the last step.
void Exchange::prepare_wire(int64_t step) {
  std::vector<parallel::WireSegment> segments = codecs_.segments();
  if (uses_low_rank(config_)) {
    set_low_rank(low_rank_, config_, stage_, step);
    std::erase_if(segments, [this](const auto& s) { return low_rank_.holds(s.first); });
  }
  wire_.set_segments(std::move(segments));
  if (config_.parallel.error_feedback) {
    wire_.set_feedback(stage_.store().feedback());
  }
  wire_.set_key(key(step));
}

void Exchange::begin(int64_t step) {
  step_ = step;
  codecs_.prepare();
  measures_ = codecs_.due(step);
  before_ = std::exchange(readiness_, {});
  began_ = now_seconds();
  gradient_.follow(stage_.store().gradient());
  if (!measures_) {
    begin_buckets();
  }
}

void Exchange::begin_buckets() {
  prepare_wire(step_);
  const Tensor& gradient = gradient_.host();
  if (shards_) {
    buckets_.begin(gradient, shards_->partition(), {.wire = &wire_});
  } else {
    buckets_.begin(gradient, stage_.boundaries(), {.wire = &wire_});
  }
}

void Exchange::ready(int64_t end) {
  readiness_.ends.push_back(end);
  readiness_.ready.push_back(now_seconds() - began_);
  gradient_.fetch(end);
  if (!measures_) {
    buckets_.ready(gradient_.arrived());
  }
}

void Exchange::finish() {
  readiness_.backward = now_seconds() - began_;
  gradient_.fetch_all();
  if (measures_) {
    // The step before tells when gradients are ready while others are on their way.
    codecs_.choose(gradient_.host(), before_.ends.empty() ? readiness_ : before_, key(step_));
    begin_buckets();
  }
  buckets_.finish();
  gradient_.give_back();
}

void Exchange::sum(const sparse::ParameterRange& range, int64_t step) {
  require(!shards_, "whole gradients on all replicas");
  sparse::Store& store = stage_.store();
  const auto [first, count] = sparse::flat_range(store, range);
  std::vector<int64_t> ends;
  for (size_t p = range.end; p-- > range.first;) {
    ends.push_back(p == range.first ? count : store.parameters()[p - 1].offset - first);
  }
  gradient_.follow(store.gradient().elements(first, count));
  gradient_.fetch_all();
  prepare_wire(step);
  buckets_.begin(gradient_.host(), ends, {.wire = &wire_, .first = first});
  buckets_.ready(count);
  buckets_.finish();
  gradient_.give_back();
}

optim::StepResult Exchange::update(int64_t step, double lr) {
  if (shards_) {
    return sharded_update(step, lr);
  }
  optim::StepHooks hooks;
  if (ranks_.pipeline().size() > 1) {
    hooks.sum = [this](std::span<double> words) { sum_norms(words); };
  }
  return stage_.update(step, lr, hooks);
}

/// Over stages, and over the slices of each where they are shared out.
void Exchange::sum_norms(std::span<double> words) {
  if (shards_) {
    parallel::all_reduce_small(ranks_.data(), words, parallel::Combine::sum);
  }
  if (ranks_.pipeline().size() > 1) {
    parallel::all_reduce_small(ranks_.pipeline(), words, parallel::Combine::sum);
  }
}

void Exchange::begin_gather() {
  const bool coded = codes_values(config_);
  if (coded) {
    values_.set_segments(value_segments(config_, stage_.store()));
  }
  value_.follow(stage_.store().value());
  gather_.begin(value_.host(), shards_->partition(), {.wire = coded ? &values_ : nullptr});
}

/// A bucket's values travel while the next are stepped.
optim::StepResult Exchange::sharded_update(int64_t step, double lr) {
  const parallel::Partition& partition = shards_->partition();
  sparse::Store& store = stage_.store();
  bool begun = false;
  const optim::StepHooks hooks{
      .sum = [&](std::span<double> words) { sum_norms(words); },
      .stepped =
          [&](int64_t end) {
            if (!begun) {
              begin_gather();
              begun = true;
            }
            value_.fetch(end);
            const auto open = std::ranges::upper_bound(partition.ends, value_.arrived());
            if (open != partition.ends.begin()) {
              gather_.ready(static_cast<size_t>(open - partition.ends.begin()) - 1);
            }
          }};
  const optim::StepResult result = stage_.update(step, lr, hooks);
  if (result.applied) {
    value_.fetch_all();
    gather_.finish();
    value_.give_back();
    store.refresh_all();
  }
  return result;
}

}  // namespace espalier::train
