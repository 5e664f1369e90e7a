#include "src/train/exchange/exchange.h"

#include "parallel/transport/collectives.h"
#include "sparse/store/value_copy.h"
#include "src/core/rng.h"
#include "src/train/exchange/device_transfer.h"
#include "src/train/exchange/gradient_wire.h"
#include "src/train/exchange/host_transfer.h"
#include "src/train/exchange/low_rank_codec.h"
#include "src/train/exchange/value_wire.h"
#include "src/train/run/agreement.h"

namespace espalier::train {
namespace {

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
                   std::shared_ptr<Shards> shards, StageSums& stages)
    : config_(config),
      ranks_(ranks),
      stage_(stage),
      shards_(std::move(shards)),
      stages_(stages),
      clock_(stage.stream()),
      transfer_(make_transfer()),
      codecs_(config, stage, ranks.data(), *transfer_) {
  if (uses_low_rank(config)) {
    set_low_rank(low_rank(), config, stage, 0);
  }
  if (shards_ && transfer_->on_device()) {
    shards_->set_way([this](const auto& vectors) { transfer_->collect(vectors); });
  }
}

Exchange::~Exchange() {
  if (shards_) {
    shards_->set_way({});
  }
}

/// Collective: all take the same way.
std::unique_ptr<Transfer> Exchange::make_transfer() {
  const std::string& wanted = config_.parallel.device_link;
  const bool needed = wanted == "nccl" || config_.parallel.reduction == "nccl";
  parallel::Communicator& replicas = ranks_.data();
  const bool on_device = stage_.store().arena().on_device();
  if (replicas.size() > 1 && (on_device || needed)) {
    std::string why = wanted == "host" || wanted == "mpi"
                          ? fmt::format("parallel.device_link = \"{}\"", wanted)
                          : host_reason(config_);
    if (why.empty()) {
      why = parallel::NcclLink::obstacle(replicas, stage_.stream());
    }
    if (why.empty()) {
      way_ = fmt::format("gradients go from GPU to GPU by NCCL {}", parallel::nccl::description());
      stage_.store().move_codecs_to_device();
      return std::make_unique<DeviceTransfer>(config_, replicas, stage_);
    }
    if (needed) {
      throw SharedFailure(fmt::format("parallel.{} = \"nccl\" cannot be had: {}",
                                      wanted == "nccl" ? "device_link" : "reduction", why));
    }
    way_ = fmt::format("gradients go through the host: {}", why);
  }
  return std::make_unique<HostTransfer>(config_, replicas, stage_);
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
    set_low_rank(low_rank(), config_, stage_, step);
    std::erase_if(segments, [this](const auto& s) { return low_rank().holds(s.first); });
  }
  parallel::Wire& wire = transfer_->gradient_wire();
  wire.set_segments(std::move(segments));
  if (config_.parallel.error_feedback) {
    wire.set_feedback(stage_.store().feedback());
  }
  wire.set_key(key(step));
}

void Exchange::begin(int64_t step) {
  step_ = step;
  prepare();
  measures_ = codecs_.due(step);
  clock_.begin(measures_);
  transfer_->follow(stage_.store().gradient());
  if (!measures_) {
    begin_buckets();
  }
}

void Exchange::begin_buckets() {
  prepare_wire(step_);
  transfer_->sum(
      {.boundaries = stage_.boundaries(), .partition = shards_ ? &shards_->partition() : nullptr});
}

void Exchange::ready(int64_t end) {
  clock_.ready(end);
  transfer_->ready(end);
}

void Exchange::finish() {
  clock_.finish();
  if (measures_) {
    codecs_.choose(transfer_->on_host(), clock_.found(), key(step_));
    begin_buckets();
  }
  transfer_->finish();
}

void Exchange::sum(const sparse::ParameterRange& range, int64_t step) {
  require(!shards_, "whole gradients on all replicas");
  sparse::Store& store = stage_.store();
  const auto [first, count] = sparse::flat_range(store, range);
  transfer_->follow(store.gradient().elements(first, count));
  prepare_wire(step);
  transfer_->sum({.boundaries = sparse::flat_ends(store, range), .first = first});
  transfer_->finish();
}

optim::AskedUpdate Exchange::update(int64_t step, double lr) {
  if (shards_) {
    return sharded_update(step, lr);
  }
  return stage_.update(step, lr, {.sum = sum_of_norms(), .stepped = {}});
}

/// Over stages, and over the slices of each where they are shared out.
optim::GradientNorm::Sum Exchange::sum_of_norms() {
  if (!stages_.any() && !shards_) {
    return {};
  }
  const bool slices_meet = !shards_ || transfer_->on_device();
  const bool stages_meet = !stages_.any() || stages_.on_device();
  if (slices_meet && stages_meet) {
    return {.on_device = [this](const Tensor& counts) { sum_counts(counts); }};
  }
  return {.on_host = [this](std::span<double> words) { sum_words(words); }};
}

void Exchange::sum_counts(const Tensor& counts) {
  if (shards_) {
    transfer_->sum_counts(counts);
  }
  if (stages_.any()) {
    stages_.sum_counts(counts);
  }
}

void Exchange::sum_words(std::span<double> words) {
  if (shards_) {
    parallel::all_reduce_small(ranks_.data(), words, parallel::Combine::sum);
  }
  if (stages_.any()) {
    stages_.sum_words(words);
  }
}

void Exchange::begin_gather() {
  const bool coded = codes_values(config_);
  if (coded) {
    parallel::Wire& wire = transfer_->value_wire();
    wire.set_segments(value_segments(config_, stage_.store()));
    if (transfer_->on_device()) {  // the host would know that nothing was stepped
      wire.set_factor(stage_.clip_factor());
    }
  }
  transfer_->gather(stage_.store().value(), shards_->partition(), coded);
}

/// A bucket's values travel while the next are stepped.
optim::AskedUpdate Exchange::sharded_update(int64_t step, double lr) {
  sparse::Store& store = stage_.store();
  bool begun = false;
  const optim::StepHooks hooks{.sum = sum_of_norms(), .stepped = [&](int64_t end) {
                                 if (!begun) {
                                   begin_gather();
                                   begun = true;
                                 }
                                 transfer_->stepped(end);
                               }};
  const optim::AskedUpdate asked = stage_.update(step, lr, hooks);
  if (begun) {
    transfer_->finish_gather();
    store.refresh_all();
  }
  return asked;
}

}  // namespace espalier::train
