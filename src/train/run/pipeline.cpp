#include "src/train/run/pipeline.h"

#include <algorithm>
#include <array>
#include <utility>

#include "parallel/transport/collectives.h"
#include "parallel/transport/device/nccl_link.h"
#include "src/core/trace.h"

namespace espalier::train {
namespace {

using parallel::Action;
using parallel::ActionKind;

/// Message sizes of all boundaries: a part receives what the part before it sends.
parallel::PipelineShape shape_of(const Layout& layout, Stage& stage, Ranks& ranks,
                                 parallel::CarrierKind carrier) {
  std::vector<double> sizes(static_cast<size_t>(layout.stages()), 0);
  for (int chunk = 0; chunk < layout.schedule.chunks; ++chunk) {
    const int number = layout.schedule.stage_of(ranks.stage(), chunk);
    sizes[static_cast<size_t>(number)] =
        static_cast<double>(stage.parts()[layout.part_of(number)]->bytes_out());
  }
  parallel::all_reduce_small(ranks.pipeline(), sizes, parallel::Combine::max);
  std::vector<size_t> bytes;
  for (int boundary = 0; boundary + 1 < layout.stages(); ++boundary) {
    bytes.push_back(static_cast<size_t>(sizes[static_cast<size_t>(boundary)]));
  }
  return {.placement = layout.schedule.placement,
          .chunks = layout.schedule.chunks,
          .buffers = layout.buffers(),
          .local_buffers = layout.local_buffers(),
          .message_bytes = std::move(bytes),
          .carrier = carrier};
}

/// Why MPI cannot send device memory, the same on all ranks; empty: it can. Unknown counts as
/// supported if the user requested it.
std::string mpi_obstacle(parallel::Communicator& world, bool wanted) {
  const std::string accepts = world.takes_device_memory();
  std::array<double, 1> accepting{accepts == "yes" || (accepts == "unknown" && wanted) ? 1.0 : 0.0};
  parallel::all_reduce_small(world, accepting, parallel::Combine::sum);
  return accepting[0] == world.size()
             ? ""
             : fmt::format(
                   "MPI takes addresses of GPUs on {} of {} ranks (espalier info: mpi_cuda)",
                   accepting[0], world.size());
}

}  // namespace

StageLink choose_stage_link(const io::Config& config, parallel::Communicator& world,
                            Stream& stream) {
  const std::string& wanted = config.parallel.device_link;
  const bool forced = wanted == "nccl" || wanted == "mpi";
  const bool on_device = stream.arena().on_device();
  if (world.size() == 1 || (!on_device && !forced)) {
    return {};
  }
  std::string why = wanted == "host" ? "parallel.device_link = \"host\"" : "";
  if (wanted == "auto" || wanted == "nccl") {
    why = parallel::NcclLink::obstacle(world, stream);
    if (why.empty()) {
      return {.carrier = parallel::CarrierKind::nccl,
              .note = fmt::format("messages between stages go from GPU to GPU by NCCL {}",
                                  parallel::nccl::description()),
              .obstacle = {}};
    }
  }
  if (wanted == "auto" || wanted == "mpi") {
    const std::string by_mpi =
        on_device ? mpi_obstacle(world, wanted == "mpi") : "a rank computes on no GPU";
    if (by_mpi.empty()) {
      return {.carrier = parallel::CarrierKind::mpi,
              .note = "messages between stages go from GPU to GPU by MPI",
              .obstacle = {}};
    }
    why += why.empty() ? by_mpi : "; " + by_mpi;
  }
  return {.carrier = parallel::CarrierKind::host,
          .note = fmt::format("messages between stages go through the host: {}", why),
          .obstacle = forced ? why : ""};
}

parallel::CarrierKind planned_carrier(const io::Config& config, bool device) {
  return device && config.parallel.device_link != "host" ? parallel::CarrierKind::nccl
                                                         : parallel::CarrierKind::host;
}

Pipeline::Pipeline(const io::Config& config, const Parts& parts, const Options& options)
    : layout_(parts.layout),
      stage_(parts.stage),
      source_(parts.source),
      data_parallel_(parts.data_parallel),
      reduction_(parts.reduction),
      options_(options),
      runner_(parts.ranks.pipeline(), parts.stage.stream(),
              shape_of(parts.layout, parts.stage, parts.ranks, options.carrier)) {
  if (layout_.asynchronous()) {
    weights_ = make_part_weights(config, layout_, parts.ranks.stage(), stage_);
  }
  const bool one_replica = parts.ranks.data().size() == 1;  // else reductions begin between layers
  for (const auto& part : stage_.parts()) {
    part->set_after_layer([this] { runner_.progress(); });
    part->enable_graphs(config.run.graphs && !config.run.operation_times, one_replica);
  }
}

void Pipeline::train(int64_t step, double loss_scale) {
  run_step({.step = step, .first_sample = options_.first_sample, .loss_scale = loss_scale},
           layout_.schedule);
}

void Pipeline::probe(int64_t step, const Range& samples, double loss_scale) {
  run_step({.reduces = false,
            .step = step,
            .first_sample = samples.first,
            .samples = samples.count,
            .loss_scale = loss_scale},
           parallel::one_micro_batch(layout_.schedule));
  take_losses();
}

void Pipeline::run_step(const Work& work, const parallel::Schedule& schedule) {
  work_ = work;
  work_.last_micro_batch = schedule.micro_batches - 1;
  left_.clear();
  for (const auto& part : stage_.parts()) {
    left_.push_back(part->network().layers().size());
  }
  // Tied gradients are at the end of the flat array, and wait for the other stage's share.
  sparse::Store& store = stage_.store();
  reducible_ = stage_.tied_head_on_other_stage() ? store.find(stage_.tied_parameter()).offset
                                                 : store.flat_size();
  if (work_.reduces) {
    data_parallel_.begin_step(work_.step);
  }
  if (layout_.policy && schedule.micro_batches == layout_.policy->micro_batches) {
    runner_.run(*layout_.policy, *this);
  } else {
    runner_.run(schedule, *this);
  }
  times_ = runner_.times();
  const double begin = now_seconds();
  reduction_.reduce_tied();
  if (work_.reduces) {
    data_parallel_.finish_reduce();
  }
  collective_ = now_seconds() - begin;
}

std::vector<Pipeline::Outcome> Pipeline::train_asynchronously(int64_t first, int64_t steps,
                                                              double loss_scale,
                                                              const Checks& checks) {
  work_ = {.step = first,
           .first_sample = options_.first_sample,
           .loss_scale = loss_scale,
           .checks = &checks};
  collective_ = 0;
  outcomes_.assign(static_cast<size_t>(steps), {});
  data_parallel_.prepare();
  for (PartWeights& weights : weights_) {
    weights.begin(first);
  }
  segment_ = layout_.segment(steps);
  runner_.run(segment_, *this);
  for (PartWeights& weights : weights_) {
    weights.end();
  }
  take_losses();
  times_ = runner_.times();
  return std::exchange(outcomes_, {});
}

Pipeline::Losses Pipeline::evaluate(int64_t first, int64_t samples) {
  work_ = {.training = false, .reduces = false, .first_sample = first, .samples = samples};
  const int64_t micro_batches = (samples + options_.samples - 1) / options_.samples;
  check(micro_batches <= INT32_MAX,
        "an evaluation has {} micro-batches, more than 2^31 - 1; set a smaller train.eval_batches",
        micro_batches);
  if (micro_batches > 0) {
    runner_.run(parallel::forward_only(layout_.schedule, static_cast<int>(micro_batches)), *this);
  }
  return take_losses();
}

Mark Pipeline::run(const Action& action, std::span<const std::byte> in, std::span<std::byte> out) {
  compute(action, in, out);
  return in.empty() ? Mark{} : part(action).message_read();
}

void Pipeline::compute(const Action& action, std::span<const std::byte> in,
                       std::span<std::byte> out) {
  switch (action.kind) {
    case ActionKind::forward:
      return forward(action, in, out);
    case ActionKind::backward:
      if (PartWeights* weights = weights_of(action); weights != nullptr) {
        weights->before_backward(action.micro_batch);
        part(action).backward(action.micro_batch, false, {}, in, out);
        return weights->after_backward(action.micro_batch);
      }
      return part(action).backward(action.micro_batch, false, on_layer_done(action), in, out);
    case ActionKind::backward_input:
      return part(action).backward(action.micro_batch, true, {}, in, out);
    case ActionKind::backward_weight:
      return part(action).backward_weight(action.micro_batch, on_layer_done(action));
    case ActionKind::reduce:  // synchronous: gradients are reduced during backward
      return reduce_part(action);
    case ActionKind::step:  // synchronous: the step loop updates all stages at once
      return update_part(action);
    default:
      throw Bug("messages are the runner's");
  }
}

/// Null unless parts update their weights on their own.
PartWeights* Pipeline::weights_of(const Action& action) {
  return outcomes_.empty() ? nullptr : &weights_[layout_.part_of(action.stage)];
}

void Pipeline::forward(const Action& action, std::span<const std::byte> in,
                       std::span<std::byte> out) {
  const int per_step = layout_.micro_batches();
  const int number = work_.training ? action.micro_batch % per_step : action.micro_batch;
  const int64_t before = number * options_.samples;
  MicroBatch batch{.samples = options_.samples,
                   .step = work_.step + action.micro_batch / per_step,
                   .first_sample = work_.first_sample + before,
                   .loss_scale = work_.loss_scale,
                   .accumulate = number > 0};
  if (work_.samples > 0) {
    batch.samples = std::min(options_.samples, work_.samples - before);
  }
  if (PartWeights* weights = weights_of(action); weights != nullptr) {
    weights->before_forward(action.micro_batch);
  }
  const Part::Feed feed = part(action).open(action.micro_batch, batch.samples);
  if (feed.inputs || feed.targets) {
    const Span span(Track::io, "load batch");
    work_.training ? source_.train(batch.step, batch.first_sample, feed.inputs, feed.targets)
                   : source_.validation(batch.first_sample, feed.inputs, feed.targets);
  }
  part(action).forward(action.micro_batch, batch, work_.training, in, out);
}

Pipeline::Losses Pipeline::take_losses(int64_t last) {
  Losses all;
  const auto add = [](Losses& to, const Part::Loss& loss) {
    to.targets += loss.sum;
    to.teacher += loss.teacher;
    to.top1 += loss.top1;
    to.top5 += loss.top5;
  };
  for (const auto& part : stage_.parts()) {
    for (const Part::Loss& loss : part->take_losses(last)) {
      add(all, loss);
      if (!outcomes_.empty()) {
        add(outcomes_[static_cast<size_t>(loss.step - work_.step)].losses, loss);
      }
    }
  }
  return all;
}

/// Over the replicas, in an asynchronous schedule.
void Pipeline::reduce_part(const Action& action) {
  if (weights_of(action) != nullptr) {
    const double begin = now_seconds();
    data_parallel_.reduce(stage_.parameters_of_part(layout_.part_of(action.stage)),
                          work_.step + action.micro_batch / layout_.micro_batches());
    collective_ += now_seconds() - begin;
  }
}

/// In an asynchronous schedule.
void Pipeline::update_part(const Action& action) {
  PartWeights* weights = weights_of(action);
  if (weights == nullptr) {
    return;
  }
  const int64_t number = action.micro_batch / layout_.micro_batches();
  Outcome& outcome = outcomes_[static_cast<size_t>(number)];
  if (part(action).ends()) {
    take_losses();
    work_.checks->loss(work_.step + number, outcome.losses.targets);
  }
  const Span span(Track::optimizer, "update");
  const optim::StepResult result = weights->update();
  if (!result.applied) {
    work_.checks->norm(work_.step + number, result.gradient_norm);
  }
  outcome.squares += result.gradient_norm * result.gradient_norm;
}

/// Empty unless the action makes gradients final that are reduced.
Part::Done Pipeline::on_layer_done(const Action& action) {
  if (action.micro_batch != work_.last_micro_batch || !work_.reduces) {
    return {};
  }
  return
      [this, number = layout_.part_of(action.stage)](size_t layer) { layer_done(number, layer); };
}

/// Gradients of `layer` and later layers of a part are final. The flat array is in backward order,
/// so a prefix of it is final up to the first layer that is not.
void Pipeline::layer_done(size_t part, size_t layer) {
  left_[part] = layer;
  int64_t ready = 0;
  for (size_t p = left_.size(); p-- > 0;) {
    if (left_[p] < stage_.parts()[p]->network().layers().size()) {
      ready = stage_.end_of_layer(p, left_[p]);
    }
    if (left_[p] > 0) {
      break;
    }
  }
  data_parallel_.gradient_ready(std::min(ready, reducible_));
}

}  // namespace espalier::train
