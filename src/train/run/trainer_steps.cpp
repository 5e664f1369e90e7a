// The steps of a run: asked for, and finished.
//
// On a device a step is asked for while the one before it runs: forwards, backwards, sums of
// gradients between devices, and the update, none of which the host waits for. Then the one before
// is finished: its losses and norm have come, ranks add them up, and whoever wants to know is told.
// Where something reads the state after a step, the step is finished before anything else begins.
// Without a device everything is done when it is asked for, and each step is finished at once.
//
// A step whose loss or norm is not finite changes nothing, nor does the one asked for after it
// (optim/norm.h); rows of a loss that is not finite have such gradients (kernels.h). So what is
// found then is the state before that step.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "parallel/transport/collectives.h"
#include "src/core/mirror.h"
#include "src/optim/schedule.h"
#include "src/train/run/agreement.h"
#include "src/train/run/trainer.h"

namespace espalier::train {

void Trainer::train_step(int64_t last) {
  const double begin = now_seconds();
  const Sent sent_before = sent_so_far();
  prune_if_due();
  AskedStep next = ask_step();
  next.begin = begin;
  next.sent = sent_so_far() - sent_before;
  next.report.trial_seconds = adaprec_ ? adaprec_->take_seconds() : 0;
  if (asked_) {
    after_step(finish_step(*std::exchange(asked_, {})));
  }
  const bool on_device = stage_->stream().queue() != nullptr;
  if (on_device && !loss_scale_.moving() && step_ < last && !stopping_ && !is_seen_after(step_)) {
    asked_ = std::move(next);
  } else {
    after_step(finish_step(std::move(next)));
  }
}

Trainer::AskedStep Trainer::ask_step() {
  AskedStep asked;
  asked.report.step = step_ + 1;
  asked.report.lr = optim::learning_rate(config_.optimizer, step_, config_.train.steps);
  asked.report.loss_scale = loss_scale_.value();
  stage_->set_gradient_scale(loss_scale_.value(), loss_scale_.left_out());
  pipeline_->train(pipeline_step(exchange_.get()));
  const double update_begin = now_seconds();
  {
    const Span span(Track::optimizer, "update");
    asked.update = exchange_->update(step_, asked.report.lr);
  }
  asked.report.times = {.compute = pipeline_->times().compute,
                        .waited = pipeline_->times().waited,
                        .collective = pipeline_->collective_seconds(),
                        .update = now_seconds() - update_begin};
  asked.report.sparsity = totals_.sparsity.sparsity();
  ++step_;
  return asked;
}

/// Throws what ends the run, which then is where it was before this step.
StepReport Trainer::finish_step(AskedStep asked) {
  const Span span(Track::optimizer, "loss and norm");
  const int64_t step = asked.report.step - 1;
  const Sent sent_before = sent_so_far();
  const double loss_sum = pipeline_->take_losses(step);
  const optim::StepResult update = stage_->result(asked.update);
  const auto [loss, stop] = combine(loss_sum);
  check_loss<SharedFailure>(step, loss);
  if (!loss_scale_.take(update.applied)) {
    recall_gradients(step);
    fail_of_norm<SharedFailure>(step, update.gradient_norm);
  }
  if (!update.applied) {
    note(fmt::format("step {} is left out: gradients overflowed at loss scale {}, the next is {}",
                     step + 1, asked.report.loss_scale, loss_scale_.value()));
  }
  stopping_ = stopping_ || stop;
  StepReport report = asked.report;
  const Sent sent = asked.sent + (sent_so_far() - sent_before);
  const double now = now_seconds();
  report.seconds = now - std::max(asked.begin, std::exchange(finished_, now));
  report.loss = loss;
  report.grad_norm = update.gradient_norm;
  report.tokens_per_s =
      static_cast<double>(config_.train.global_batch * source_->rows()) / report.seconds;
  report.bytes_sent = sent.all;
  report.allreduce_bytes = sent.allreduce;
  report.p2p_bytes = sent.p2p;
  return report;
}

/// Gradients of a step that changed nothing: those of a step that was asked for after it are there
/// instead, and are replaced. Collective.
void Trainer::recall_gradients(int64_t step) {
  if (std::exchange(step_, step) > step + 1) {
    pipeline_->train(pipeline_step(exchange_.get()));
    parallel::barrier(comm_);  // nobody ends while others still wait for messages
  }
}

/// As a step of its own, but that nothing else hears of it.
void Trainer::train_trial(int64_t step) {
  struct Back {
    Trainer& trainer;
    int64_t step;
    LossScale loss_scale;
    ~Back() {
      trainer.step_ = step;
      trainer.loss_scale_ = loss_scale;
    }
  } back{*this, step_, loss_scale_};
  step_ = step;
  finish_step(ask_step());
  stage_->stream().synchronize();  // its time is that of the update and of gathered values, too
}

/// Whether something reads the state after `step` steps, or changes it.
bool Trainer::is_seen_after(int64_t step) const {
  auto every = [step](int64_t interval) { return interval > 0 && step % interval == 0; };
  return every(config_.train.eval_every) || every(config_.train.checkpoint_every) ||
         (layout_.grid.data > 1 && every(config_.parallel.check_every)) || pruner_->due(step) ||
         (adaprec_ && adaprec_->due(step));
}

/// Steps of an asynchronous pipeline up to its next drain: what has to see all stages after the
/// same update comes only there.
void Trainer::train_segment(int64_t last) {
  const double begin = now_seconds();
  const Sent sent_before = sent_so_far();
  prune_if_due();
  const int64_t first = step_;
  int64_t end = first + 1;
  while (end < last && !is_seen_after(end) && end % config_.parallel.drain_every != 0) {
    ++end;
  }
  Pipeline::Step step = pipeline_step(exchange_.get());
  step.check_loss = [this](int64_t at, double loss) { check_loss<Failure>(at, loss); };
  step.check_norm = [this](int64_t at, double norm) { fail_of_norm<Failure>(at, norm); };
  const auto outcomes = pipeline_->train_asynchronously(step, end - first);
  std::vector<double> sums;
  for (const Pipeline::Outcome& outcome : outcomes) {
    sums.insert(sums.end(), {outcome.loss, outcome.squares});
  }
  sums.push_back(stop_requested() ? 1 : 0);
  parallel::all_reduce_small(comm_, sums, parallel::Combine::sum);
  step_ = end;
  stopping_ = sums.back() > 0;
  const auto rows = static_cast<double>(config_.train.global_batch * source_->rows());
  const auto steps = static_cast<double>(end - first);
  const double seconds = (now_seconds() - begin) / steps;
  const parallel::RunTimes& times = pipeline_->times();
  const Sent sent = sent_so_far() - sent_before;
  for (int64_t at = first; at < end; ++at) {
    const auto i = static_cast<size_t>(at - first);
    after_step({.step = at + 1,
                .loss = sums[2 * i] / rows,
                .lr = optim::learning_rate(config_.optimizer, at, config_.train.steps),
                .grad_norm = std::sqrt(sums[2 * i + 1] / layout_.grid.data),
                .seconds = seconds,
                .tokens_per_s = rows / seconds,
                .times = {.compute = times.compute / steps,
                          .waited = times.waited / steps,
                          .collective = pipeline_->collective_seconds() / steps,
                          .update = (times.reduced - pipeline_->collective_seconds()) / steps},
                .bytes_sent = sent.all / (end - first),
                .allreduce_bytes = sent.allreduce / (end - first),
                .p2p_bytes = sent.p2p / (end - first),
                .sparsity = totals_.sparsity.sparsity(),
                .val_loss = {}});
  }
}

template <class Thrown>
void Trainer::check_loss(int64_t step, double loss) const {
  if (!std::isfinite(loss)) {
    throw Thrown(fmt::format(
        "the loss is {} at step {}: stopped before the update; the newest checkpoint is {}. Lower "
        "optimizer.lr, set optimizer.clip, or look at the data",
        std::isnan(loss) ? "NaN" : "infinite", step + 1,
        last_saved_ < 0 ? "none" : directory_->checkpoint_path(last_saved_).string()));
  }
}

namespace {

bool finite(const Tensor& gradient) {
  bool all = true;
  with_number(gradient.dtype, [&]<class Number>(Number) {
    all = std::ranges::all_of(gradient.span<Number>(),
                              [](Number x) { return std::isfinite(to_float(x)); });
  });
  return all;
}

/// The parameters whose gradients are not finite, as far as this rank knows them.
std::string where_not_finite(const sparse::Store& store) {
  std::vector<std::string> names;
  for (const sparse::Parameter& parameter : store.parameters()) {
    const Mirror gradient(store.stream(), store.part(store.gradient(), parameter));
    if (!finite(gradient.read().host())) {
      names.push_back(parameter.spec.name);
    }
  }
  constexpr size_t kMost = 3;
  const size_t others = names.size() - std::min(names.size(), kMost);
  names.resize(names.size() - others);
  return names.empty() ? ""
                       : fmt::format(", in {}{}", fmt::join(names, ", "),
                                     others > 0 ? fmt::format(" and {} more", others) : "");
}

}  // namespace

template <class Thrown>
void Trainer::fail_of_norm(int64_t step, double norm) const {
  throw Thrown(fmt::format(
      "the gradient norm is {} at step {}{}: stopped before the update; the newest checkpoint is "
      "{}. Lower optimizer.lr{}, set optimizer.clip, or look at the data",
      norm, step + 1, where_not_finite(stage_->store()),
      last_saved_ < 0 ? "none" : directory_->checkpoint_path(last_saved_).string(),
      config_.train.loss_scale > 1 ? " or train.loss_scale" : ""));
}

Trainer::Sent Trainer::sent_so_far() const {
  using parallel::Traffic;
  return {.all = comm_.sent().bytes,
          .allreduce = comm_.sent(Traffic::allreduce).bytes,
          .p2p = comm_.sent(Traffic::point_to_point).bytes};
}

bool Trainer::stop_requested() const {
  return options_.stop_requested && options_.stop_requested();
}

/// The coming step of this replica. Without an exchange gradients stay unsummed, and are looked at,
/// not stepped by: their scale is one at which hardly any overflow.
Pipeline::Step Trainer::pipeline_step(Exchange* exchange) {
  constexpr double kSafe = 1024;
  const double scale = loss_scale_.value();
  const int64_t first = ranks_->replica() * rank_samples_;
  return {.step = step_,
          .first_sample = first,
          .loss_scale = (exchange != nullptr ? scale : std::min(scale, kSafe)) /
                        static_cast<double>(config_.train.global_batch * source_->rows()),
          .load =
              [this, first](int64_t number, const Part::Feed& feed) {
                const int64_t a_step = layout_.micro_batches();
                source_->train(step_ + number / a_step, first + number % a_step * micro_batch_,
                               feed.inputs, feed.targets);
              },
          .exchange = exchange};
}

std::pair<double, bool> Trainer::combine(double loss_sum) {
  std::array<double, 2> values{loss_sum, stop_requested() ? 1.0 : 0.0};
  parallel::all_reduce_small(comm_, values, parallel::Combine::sum);
  const auto rows = static_cast<double>(config_.train.global_batch * source_->rows());
  return {values[0] / rows, values[1] > 0};
}

}  // namespace espalier::train
