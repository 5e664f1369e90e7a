#include "src/train/run/pipeline.h"

#include <algorithm>
#include <array>
#include <utility>

#include "parallel/pipeline/schedule/passes.h"
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
  return layout.messages(std::move(bytes), carrier);
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

void Pipeline::forward_backward(int64_t step, double loss_scale) {
  const parallel::Schedule& schedule = layout_.schedule;
  work_ = {.step = step,
           .first_sample = options_.first_sample,
           .loss_scale = loss_scale,
           .last_micro_batch = schedule.micro_batches - 1};
  left_.clear();
  for (const auto& part : stage_.parts()) {
    left_.push_back(part->network().layers().size());
  }
  // Tied gradients are at the end of the flat array, and wait for the other stage's share.
  sparse::Store& store = stage_.store();
  reducible_ = stage_.tied_head_on_other_stage() ? store.find(stage_.tied_parameter()).offset
                                                 : store.flat_size();
  layout_.policy ? runner_.run(*layout_.policy, *this) : runner_.run(schedule, *this);
  times_ = runner_.times();
}

void Pipeline::probe(int64_t step, const Range& samples, double loss_scale) {
  work_ = {.step = step,
           .first_sample = samples.first,
           .samples = samples.count,
           .loss_scale = loss_scale};
  runner_.run(parallel::one_micro_batch(layout_.schedule), *this);
  take_losses();
}

std::vector<Pipeline::Outcome> Pipeline::forward_backward_exchange_update(int64_t first,
                                                                          int64_t steps,
                                                                          double loss_scale,
                                                                          const Checks& checks) {
  work_ = {.step = first,
           .first_sample = options_.first_sample,
           .loss_scale = loss_scale,
           .checks = &checks};
  exchange_seconds_ = 0;
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
  work_ = {.training = false, .first_sample = first, .samples = samples};
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
  const size_t index = layout_.part_of(action.stage);
  const int number = action.micro_batch;
  const int64_t step = work_.step + number / layout_.micro_batches();
  Part& part = *stage_.parts()[index];
  // Null in synchronous schedules: the step loop exchanges gradients and updates all parts at once.
  PartWeights* weights = outcomes_.empty() ? nullptr : &weights_[index];
  switch (action.kind) {
    case ActionKind::forward: {
      if (weights != nullptr) {
        weights->before_forward(number);
      }
      const MicroBatch batch = micro_batch(number);
      read_samples(part, number, batch);
      part.forward(number, batch, work_.training, in, out);
      break;
    }
    case ActionKind::backward:
      if (weights != nullptr) {
        weights->before_backward(number);
      }
      part.backward(number, false, layer_done(index, number), in, out);
      if (weights != nullptr) {
        weights->after_backward(number);
      }
      break;
    case ActionKind::backward_input:
      part.backward(number, true, {}, in, out);
      break;
    case ActionKind::backward_weight:
      part.backward_weight(number, layer_done(index, number));
      break;
    case ActionKind::reduce:
      if (weights != nullptr) {
        exchange_part(index, step);
      }
      break;
    case ActionKind::step:
      if (weights != nullptr) {
        update_part(index, step);
      }
      break;
    default:
      throw Bug("messages are the runner's");
  }
  return in.empty() ? Mark{} : part.message_read();
}

MicroBatch Pipeline::micro_batch(int number) const {
  const int per_step = layout_.micro_batches();
  const int in_step = work_.training ? number % per_step : number;
  const int64_t before = in_step * options_.samples;
  return {.samples = work_.samples > 0 ? std::min(options_.samples, work_.samples - before)
                                       : options_.samples,
          .step = work_.step + number / per_step,
          .first_sample = work_.first_sample + before,
          .loss_scale = work_.loss_scale,
          .accumulate = in_step > 0};
}

/// Opens a micro-batch of a part, with its samples where the network begins or ends.
void Pipeline::read_samples(Part& part, int number, const MicroBatch& batch) {
  const Part::Feed feed = part.open(number, batch.samples);
  if (feed.inputs || feed.targets) {
    const Span span(Track::io, "load batch");
    work_.training ? source_.train(batch.step, batch.first_sample, feed.inputs, feed.targets)
                   : source_.validation(batch.first_sample, feed.inputs, feed.targets);
  }
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

void Pipeline::exchange_part(size_t part, int64_t step) {
  const double begin = now_seconds();
  data_parallel_.reduce(stage_.parameters_of_part(part), step);
  exchange_seconds_ += now_seconds() - begin;
}

void Pipeline::update_part(size_t part, int64_t step) {
  Outcome& outcome = outcomes_[static_cast<size_t>(step - work_.step)];
  if (stage_.parts()[part]->ends()) {
    take_losses();
    work_.checks->loss(step, outcome.losses.targets);
  }
  const Span span(Track::optimizer, "update");
  const optim::StepResult result = weights_[part].update();
  if (!result.applied) {
    work_.checks->norm(step, result.gradient_norm);
  }
  outcome.squares += result.gradient_norm * result.gradient_norm;
}

/// Empty unless the micro-batch makes gradients final that are exchanged. The flat array is in
/// backward order, so a prefix of it is final up to the first layer that is not.
Part::Done Pipeline::layer_done(size_t part, int micro_batch) {
  if (micro_batch != work_.last_micro_batch) {
    return {};
  }
  return [this, part](size_t layer) {
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
  };
}

}  // namespace espalier::train
