#include "src/train/run/data_parallel.h"

#include "parallel/reduction/registry.h"
#include "parallel/transport/collectives.h"
#include "src/core/rng.h"
#include "src/train/exchange/agreement.h"
#include "src/train/exchange/step_collectives.h"
#include "src/train/stage/wire_formats.h"

namespace espalier::train {
DataParallel::DataParallel(const io::Config& config, Ranks& ranks, Stage& stage,
                           std::shared_ptr<Shards> shards, PipelineReduction& stages)
    : config_(config),
      ranks_(ranks),
      stage_(stage),
      shards_(std::move(shards)),
      stages_(stages),
      timeline_(stage.stream()),
      route_(config, ranks.data(), stage, choose_route()),
      codecs_(config, stage, ranks.data(), route_),
      check_(stage.store(), ranks.world().rank()) {
  if (Teacher* teacher = stage.teacher(); teacher != nullptr && config.parallel.check_state) {
    teacher_check_.emplace(teacher->store(), ranks.world().rank());
    teacher_check_->record(0);
  }
  share_batch_norm();
  if (shards_) {
    shards_->set_link(route_.link());
  }
}

void DataParallel::share_batch_norm() {
  parallel::Communicator& replicas = ranks_.data();
  if (!config_.train.sync_batch_norm || replicas.size() == 1) {
    return;
  }
  if (stage_.store().arena().on_device()) {
    throw SharedFailure(
        "train.sync_batch_norm is for CPUs; set it to false, or run.backend to \"cpu\"");
  }
  for (const auto& part : stage_.parts()) {
    part->set_replicas({.count = replicas.size(),
                        .gather = [&replicas](std::span<const float> mine, std::span<float> all) {
                          parallel::all_gather(replicas, std::as_bytes(mine),
                                               std::as_writable_bytes(all));
                        }});
  }
}

DataParallel::~DataParallel() {
  if (shards_) {
    shards_->set_link(nullptr);
  }
}

/// Collective: all ranks choose the same.
ReplicaRoute::Kind DataParallel::choose_route() {
  const std::string& wanted = config_.parallel.device_link;
  const bool needed = wanted == "nccl" || config_.parallel.reduction == "nccl";
  parallel::Communicator& replicas = ranks_.data();
  const bool on_device = stage_.store().arena().on_device();
  if (replicas.size() > 1 && (on_device || needed)) {
    const std::string why = device_obstacle(config_, replicas, stage_.stream());
    if (why.empty()) {
      route_text_ =
          fmt::format("gradients go from GPU to GPU by NCCL {}", parallel::nccl::description());
      stage_.store().move_codecs_to_device();
      return ReplicaRoute::Kind::device;
    }
    if (needed) {
      throw SharedFailure(fmt::format("parallel.{} = \"nccl\" is not available: {}",
                                      wanted == "nccl" ? "device_link" : "reduction", why));
    }
    route_text_ = fmt::format("gradients go through the host: {}", why);
  }
  return ReplicaRoute::Kind::host;
}

/// Key of stochastic rounding; 0: round to nearest.
uint64_t DataParallel::rounding_key(int64_t step) const {
  if (config_.parallel.rounding != "stochastic") {
    return 0;
  }
  const uint64_t seed = mix(config_.train.seed, static_cast<uint64_t>(step));
  // By the place in the grid: the same in every parallel.rank_order.
  const int place = ranks_.stage() * ranks_.data().size() + ranks_.replica();
  return mix(seed, static_cast<uint64_t>(place) + 1);
}

/// Masks and chosen codecs may have changed since the last step.
parallel::Wire& DataParallel::prepare_wire(int64_t step) {
  parallel::Wire& wire = route_.gradient_wire();
  wire.set_segments(codecs_.segments());
  if (config_.parallel.error_feedback) {
    wire.set_feedback(stage_.store().feedback());
  }
  wire.set_key(rounding_key(step));
  return wire;
}

void DataParallel::begin_sums() {
  route_.gradients().begin(sum_step(config_, stage_, prepare_wire(step_)));
}

void DataParallel::begin_step(int64_t step) {
  step_ = step;
  prepare();
  chooses_ = codecs_.due(step);
  timeline_.begin(chooses_);
  if (!chooses_) {
    begin_sums();
  }
}

void DataParallel::gradient_ready(int64_t end) {
  stage_.store().panels().join();  // the stream follows the gathers of gradients
  timeline_.ready(end);
  check_.verify_feedback(end);
  if (!chooses_) {
    route_.gradients().ready(end);
  }
}

void DataParallel::finish_reduce() {
  timeline_.finish();
  if (chooses_) {
    codecs_.choose(route_.gradients().on_host(stage_.store().gradient()), timeline_.timeline(),
                   rounding_key(step_));
    begin_sums();
  }
  route_.gradients().finish();
}

void DataParallel::reduce(const sparse::ParameterRange& range, int64_t step) {
  route_.gradients().begin(sum_step(config_, stage_, prepare_wire(step), range));
  route_.gradients().finish();
}

optim::PendingUpdate DataParallel::update(int64_t step, double lr) {
  check_.begin_update();
  optim::PendingUpdate pending =
      shards_ ? sharded_update(step, lr)
              : stage_.update(step, lr,
                              {.sum = norm_reduction(),
                               .stepped = {},
                               .observer = [this](const sparse::Parameter& parameter) {
                                 return check_.observer_of(parameter);
                               }});
  if (ends_may_differ()) {
    stages_.copy_tied_values();
  }
  if (config_.parallel.check_state) {
    check_.end_update(step + 1);
  }
  return pending;
}

/// Whether the sums of tied embeddings over replicas may differ between the first and the last
/// stage, where their elements have other places in the flat array. The tied parameter has no lossy
/// codec, but in 16 bits its sum is rounded like the others: with errors of earlier steps, or by
/// random numbers of the element's place. The same on all ranks.
bool DataParallel::ends_may_differ() const {
  const io::ParallelConfig& parallel = config_.parallel;
  const int replicas = ranks_.data().size();
  const bool by_place = parallel.error_feedback ||
                        (parallel.rounding == "stochastic" && has_lossy_gradient_codec(config_));
  const bool rounds = stage_.store().gradient().dtype != DType::fp32 && by_place;
  const bool in_rank_order =
      parallel.reduction == "auto" ||
      find(parallel::reductions(), "reduction", parallel.reduction).in_rank_order;
  return replicas > 1 && (rounds || (replicas > 2 && !in_rank_order));
}

void DataParallel::record_state(int64_t step) {
  if (config_.parallel.check_state) {
    check_.record(step);
  }
}

void DataParallel::verify_state() const {
  check_.verify();
  check_.verify_feedback();
  if (teacher_check_) {
    teacher_check_->verify();
  }
}

/// Sums the norm over the stages of a pipeline and the slices of a sharded optimizer.
optim::GradientNorm::Sum DataParallel::norm_reduction() {
  const bool stages = stages_.has_stages();
  if (!stages && !shards_) {
    return {};
  }
  if ((!shards_ || route_.link() != nullptr) && (!stages || stages_.on_device())) {
    return {.on_device = [this, stages](const Tensor& counts) {
      if (shards_) {
        parallel::NcclLink& link = *route_.link();
        link.exchange("summing the gradient's norm", [&] { link.sum_counts(counts); });
      }
      if (stages) {
        stages_.reduce_counts(counts);
      }
    }};
  }
  return {.on_host = [this, stages](std::span<double> words) {
    if (shards_) {
      parallel::all_reduce_small(ranks_.data(), words, parallel::Combine::sum);
    }
    if (stages) {
      stages_.reduce_words(words);
    }
  }};
}

void DataParallel::begin_gather() {
  parallel::Wire& wire = route_.value_wire();
  if (encodes_values(config_) && route_.link() != nullptr) {  // the clip factor is on the device
    wire.set_factor(stage_.clip_factor());
  }
  route_.values().begin(gather_step(config_, stage_, wire));
}

/// The values of a bucket are sent while the next bucket is updated.
optim::PendingUpdate DataParallel::sharded_update(int64_t step, double lr) {
  sparse::Store& store = stage_.store();
  bool gathering = false;
  const optim::StepHooks hooks{.sum = norm_reduction(), .stepped = [&](int64_t end) {
                                 if (!gathering) {
                                   begin_gather();
                                   gathering = true;
                                 }
                                 route_.values().ready(end);
                               }};
  const optim::PendingUpdate pending = stage_.update(step, lr, hooks);
  if (gathering) {
    route_.values().finish();
    store.refresh_all();
  }
  return pending;
}

}  // namespace espalier::train
