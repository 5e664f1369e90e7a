#include "src/train/stage/pipeline.h"

#include <algorithm>
#include <utility>

#include "parallel/transport/collectives.h"
#include "src/core/trace.h"

namespace espalier::train {
namespace {

using parallel::Action;
using parallel::ActionKind;

/// Both ends know what crosses: what a part takes in is what the one before it puts out.
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

}  // namespace

Pipeline::Pipeline(const io::Config& config, const Layout& layout, Ranks& ranks, Stage& stage,
                   const Options& options)
    : layout_(layout),
      stage_(stage),
      sums_(*options.sums),
      samples_(options.samples),
      runner_(ranks.pipeline(), stage.stream(), shape_of(layout, stage, ranks, options.carrier)) {
  if (layout.asynchronous()) {
    weights_ = make_part_weights(config, layout, ranks.stage(), stage);
  }
  for (const auto& part : stage.parts()) {
    part->set_between([this] { runner_.progress(); });
    part->set_replays(config.run.graphs, ranks.data().size() == 1);  // else sums begin at layers
  }
}

void Pipeline::train(const Step& step) { run_step(step, layout_.schedule); }

void Pipeline::probe(const Step& step) {
  const parallel::Schedule& all = layout_.schedule;
  // Whatever the schedule, one micro-batch goes there and back.
  run_step(step, parallel::one_micro_batch(all));
  take_losses();
}

void Pipeline::run_step(const Step& step, const parallel::Schedule& schedule) {
  step_ = step;
  training_ = true;
  last_ = schedule.micro_batches - 1;
  ready_ = 0;
  left_.clear();
  for (const auto& part : stage_.parts()) {
    left_.push_back(part->network().layers().size());
  }
  if (step_.exchange != nullptr) {
    step_.exchange->begin(step.step);
  }
  if (layout_.policy && schedule.micro_batches == layout_.policy->micro_batches) {
    runner_.run(*layout_.policy, *this);
  } else {
    runner_.run(schedule, *this);
  }
  times_ = runner_.times();
  const double begin = now_seconds();
  sums_.add_tied();
  if (step_.exchange != nullptr) {
    step_.exchange->finish();
  }
  collective_ = now_seconds() - begin;
}

std::vector<Pipeline::Outcome> Pipeline::train_asynchronously(const Step& first, int64_t steps) {
  step_ = first;
  training_ = true;
  collective_ = 0;
  outcomes_.assign(static_cast<size_t>(steps), {});
  if (step_.exchange != nullptr) {
    step_.exchange->prepare();
  }
  for (PartWeights& weights : weights_) {
    weights.begin(first.step);
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

double Pipeline::evaluate(int64_t samples, const Load& load) {
  training_ = false;
  step_ = {.load = load};
  evaluated_ = samples;
  const auto micro_batches = static_cast<int>((samples + samples_ - 1) / samples_);
  if (micro_batches > 0) {
    runner_.run(parallel::forward_only(layout_.schedule, micro_batches), *this);
  }
  return take_losses();
}

Mark Pipeline::run(const Action& action, std::span<const std::byte> in, std::span<std::byte> out) {
  compute(action, in, out);
  return in.empty() ? Mark{} : part(action).taken();
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
      return part(action).backward(action.micro_batch, false, done_of(action), in, out);
    case ActionKind::backward_input:
      return part(action).backward(action.micro_batch, true, {}, in, out);
    case ActionKind::backward_weight:
      return part(action).backward_weight(action.micro_batch, done_of(action));
    case ActionKind::reduce:
      if (weights_of(action) != nullptr) {
        sum_gradient(layout_.part_of(action.stage),
                     step_.step + action.micro_batch / layout_.micro_batches());
      }
      return;  // else gradients are summed as layers complete them,
    case ActionKind::step:
      if (weights_of(action) != nullptr) {
        update(action);
      }
      return;  // and the trainer updates all stages at once
    default:
      throw Bug("messages are the runner's");
  }
}

/// Null unless parts step by themselves now.
PartWeights* Pipeline::weights_of(const Action& action) {
  return outcomes_.empty() ? nullptr : &weights_[layout_.part_of(action.stage)];
}

void Pipeline::forward(const Action& action, std::span<const std::byte> in,
                       std::span<std::byte> out) {
  const int a_step = layout_.micro_batches();
  const int number = training_ ? action.micro_batch % a_step : action.micro_batch;
  const int64_t before = number * samples_;
  MicroBatch batch{.samples = samples_,
                   .step = step_.step + action.micro_batch / a_step,
                   .first_sample = step_.first_sample + before,
                   .loss_scale = step_.loss_scale,
                   .accumulate = number > 0};
  if (!training_) {
    batch.samples = std::min(samples_, evaluated_ - before);
  }
  if (PartWeights* weights = weights_of(action); weights != nullptr) {
    weights->before_forward(action.micro_batch);
  }
  const Part::Feed feed = part(action).open(action.micro_batch, batch.samples);
  if (feed.inputs || feed.targets) {
    const Span span(Track::io, "load batch");
    step_.load(action.micro_batch, feed);
  }
  part(action).forward(action.micro_batch, batch, training_, in, out);
}

double Pipeline::take_losses(int64_t last) {
  double all = 0;
  for (const auto& part : stage_.parts()) {
    for (const auto& [step, sum] : part->take_losses(last)) {
      all += sum;
      if (!outcomes_.empty()) {
        outcomes_[static_cast<size_t>(step - step_.step)].loss += sum;
      }
    }
  }
  return all;
}

/// Over the replicas.
void Pipeline::sum_gradient(size_t part, int64_t number) {
  if (step_.exchange == nullptr) {
    return;
  }
  const double begin = now_seconds();
  step_.exchange->sum(stage_.parameters_of_part(part), number);
  collective_ += now_seconds() - begin;
}

void Pipeline::update(const Action& action) {
  const int64_t number = action.micro_batch / layout_.micro_batches();
  Outcome& outcome = outcomes_[static_cast<size_t>(number)];
  if (part(action).ends()) {
    take_losses();
    step_.check_loss(step_.step + number, outcome.loss);
  }
  const Span span(Track::optimizer, "update");
  const optim::StepResult result = weights_of(action)->update();
  if (!result.applied) {
    step_.check_norm(step_.step + number, result.gradient_norm);
  }
  outcome.squares += result.gradient_norm * result.gradient_norm;
}

Part::Done Pipeline::done_of(const Action& action) {
  if (action.micro_batch != last_ || step_.exchange == nullptr) {
    return {};
  }
  return [this, number = layout_.part_of(action.stage)](size_t layer) { completed(number, layer); };
}

/// Gradients from `layer` of a part on are complete: a prefix of the flat array is ready as far as
/// all later parts are, too.
void Pipeline::completed(size_t part, size_t layer) {
  left_[part] = layer;
  for (size_t p = left_.size(); p-- > 0;) {
    const size_t layers = stage_.parts()[p]->network().layers().size();
    if (left_[p] < layers) {
      ready_ = stage_.end_of_layer(p, left_[p]);
    }
    if (left_[p] > 0) {
      break;
    }
  }
  // What is tied waits for the other stage's share; it lies at the end of the flat array.
  sparse::Store& store = stage_.store();
  const int64_t end =
      stage_.tied_apart() ? store.find(stage_.tied_parameter()).offset : store.flat_size();
  step_.exchange->ready(std::min(ready_, end));
}

}  // namespace espalier::train
