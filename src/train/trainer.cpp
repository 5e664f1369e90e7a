#include "src/train/trainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "parallel/collectives.h"
#include "src/core/mirror.h"
#include "src/optim/schedule.h"
#include "src/train/agreement.h"
#include "src/train/pipeline_record.h"
#include "src/train/snapshot.h"
#include "src/train/summary.h"

namespace espalier::train {

RunResult Trainer::run() {
  const int64_t last = options_.stop_after > 0 ? std::min(options_.stop_after, config_.train.steps)
                                               : config_.train.steps;
  while (step_ < last && !stopping_) {
    if (adaprec_ && adaprec_->due(step_)) {
      note(adaprec_->round(step_));
    }
    record_trace(traced(step_));
    for (StepReport& report : layout_.asynchronous() ? train_segment(last) : train_step()) {
      after_step(report);
    }
  }
  record_trace(false);
  const bool finished = step_ >= config_.train.steps;
  finish(finished);
  return {.steps = step_, .finished = finished};
}

void Trainer::prune_if_due() {
  if (!pruner_->due(step_) || (step_ == 0 && started_pruned_)) {
    return;
  }
  const Span span(Track::optimizer, "new masks");
  const double before = totals_.sparsity.sparsity();
  Change change =
      pruner_->change(step_, ranks_->data(), [this] { pipeline_->probe(pipeline_step(nullptr)); });
  count_totals();
  std::array<double, 1> grown{static_cast<double>(change.grown)};
  parallel::all_reduce_small(ranks_->pipeline(), grown, parallel::Combine::sum);
  change.grown = static_cast<int64_t>(grown[0]);
  for (const std::string& warning : change.warnings) {
    note("pruning: " + warning);
  }
  const double after = totals_.sparsity.sparsity();
  if (change.grown > 0) {
    note(fmt::format("masks moved after step {}: {} elements are new", step_, change.grown));
  }
  if (change.grown > 0 && after == before) {
    return;
  }
  note(fmt::format("pruned after step {}: sparsity {:.4f} -> {:.4f} ({} of {} parameters kept)",
                   step_, before, after, totals_.kept, totals_.size));
}

std::vector<StepReport> Trainer::train_step() {
  const double begin = now_seconds();
  const Sent sent_before = sent_so_far();
  prune_if_due();
  const double lr = optim::learning_rate(config_.optimizer, step_, config_.train.steps);

  const auto [loss, stop] = combine(pipeline_->train(pipeline_step(exchange_.get())));
  check_loss<SharedFailure>(step_, loss);
  optim::StepResult update;
  const double update_begin = now_seconds();
  {
    const Span span(Track::optimizer, "update");
    update = exchange_->update(step_, lr);
  }
  check_norm<SharedFailure>(step_, update.gradient_norm);
  const double update_seconds = now_seconds() - update_begin;
  ++step_;
  stopping_ = stop;
  const double seconds = now_seconds() - begin;
  const auto rows = static_cast<double>(config_.train.global_batch * source_->rows());
  const Sent sent = sent_so_far() - sent_before;
  return {{.step = step_,
           .loss = loss,
           .lr = lr,
           .grad_norm = update.gradient_norm,
           .seconds = seconds,
           .tokens_per_s = rows / seconds,
           .times = {.compute = pipeline_->times().compute,
                     .waited = pipeline_->times().waited,
                     .collective = pipeline_->collective_seconds(),
                     .update = update_seconds},
           .bytes_sent = sent.all,
           .allreduce_bytes = sent.allreduce,
           .p2p_bytes = sent.p2p,
           .sparsity = totals_.sparsity.sparsity(),
           .trial_seconds = adaprec_ ? adaprec_->take_seconds() : 0,
           .val_loss = {}}};
}

/// As a step of its own, but that nothing else hears of it.
void Trainer::train_trial(int64_t step) {
  struct Back {
    int64_t& step;
    int64_t before;
    ~Back() { step = before; }
  } back{step_, step_};
  step_ = step;
  check_loss<SharedFailure>(step, combine(pipeline_->train(pipeline_step(exchange_.get()))).first);
  const double lr = optim::learning_rate(config_.optimizer, step, config_.train.steps);
  check_norm<SharedFailure>(step, exchange_->update(step, lr).gradient_norm);
}

/// Steps of an asynchronous pipeline up to its next drain: what has to see all stages after the
/// same update comes only there.
std::vector<StepReport> Trainer::train_segment(int64_t last) {
  const double begin = now_seconds();
  const Sent sent_before = sent_so_far();
  prune_if_due();
  const int64_t first = step_;
  int64_t end = first + 1;
  while (end < last && !drains_after(end)) {
    ++end;
  }
  Pipeline::Step step = pipeline_step(exchange_.get());
  step.check_loss = [this](int64_t at, double loss) { check_loss<Failure>(at, loss); };
  step.check_norm = [this](int64_t at, double norm) { check_norm<Failure>(at, norm); };
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
  std::vector<StepReport> reports;
  for (int64_t at = first; at < end; ++at) {
    const auto i = static_cast<size_t>(at - first);
    reports.push_back(
        {.step = at + 1,
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
  return reports;
}

bool Trainer::drains_after(int64_t step) const {
  auto every = [step](int64_t interval) { return interval > 0 && step % interval == 0; };
  return every(config_.parallel.drain_every) || every(config_.train.eval_every) ||
         every(config_.train.checkpoint_every) ||
         (layout_.grid.data > 1 && every(config_.parallel.check_every)) || pruner_->due(step);
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
void Trainer::check_norm(int64_t step, double norm) const {
  if (!std::isfinite(norm)) {
    throw Thrown(fmt::format(
        "the gradient norm is {} at step {}{}: stopped before the update; the newest checkpoint is "
        "{}. Lower optimizer.lr, set optimizer.clip, or look at the data",
        norm, step + 1, where_not_finite(stage_->store()),
        last_saved_ < 0 ? "none" : directory_->checkpoint_path(last_saved_).string()));
  }
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

/// The coming step of this replica. Without an exchange gradients stay unsummed.
Pipeline::Step Trainer::pipeline_step(Exchange* exchange) {
  const int64_t first = ranks_->replica() * rank_samples_;
  return {.step = step_,
          .first_sample = first,
          .loss_scale = 1.0 / static_cast<double>(config_.train.global_batch * source_->rows()),
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

double Trainer::evaluate(int64_t batches) {
  const Span span(Track::compute, "evaluation");
  const int64_t samples =
      std::min(source_->validation_samples(), batches * config_.train.global_batch);
  // Contiguous shares, as even as they get.
  const int64_t replicas = layout_.grid.data;
  const int64_t first = samples * ranks_->replica() / replicas;
  const int64_t end = samples * (ranks_->replica() + 1) / replicas;
  std::array<double, 1> total{
      pipeline_->evaluate(end - first, [&](int64_t number, const Part::Feed& feed) {
        source_->validation(first + number * micro_batch_, feed.inputs, feed.targets);
      })};
  parallel::all_reduce_small(comm_, total, parallel::Combine::sum);
  return total[0] / static_cast<double>(samples * source_->rows());
}

void Trainer::after_step(StepReport& report) {
  auto every = [&](int64_t interval) { return interval > 0 && report.step % interval == 0; };
  const bool last = report.step >= config_.train.steps;
  if (every(config_.train.eval_every) || last) {
    report.val_loss = evaluate(config_.train.eval_batches);
  }
  nlohmann::ordered_json line = metrics_line(report);
  directory_->write_metrics(line);
  if (every(config_.parallel.check_every) && layout_.grid.data > 1) {
    compare_ranks(stage_->store(), ranks_->data());
  }
  if (every(config_.train.checkpoint_every)) {
    checkpoint();
  }
  tell_codecs();
  if (options_.on_step) {
    options_.on_step(report);
  }
}

void Trainer::checkpoint() {
  const Span span(Track::io, "checkpoint");
  const Progress progress{.step = step_,
                          .config = config_,
                          .characters = source_->characters(),
                          .codec_choice = all_codec_choices()};
  const auto path = directory_->checkpoint_path(step_);
  save(path, stage_->store(), progress, comm_, owners());
  last_saved_ = step_;
  if (comm_.rank() == 0) {
    io::prune_checkpoints(directory_->checkpoints(), config_.train.keep_checkpoints);
  }
  note(fmt::format("checkpoint {}", path.string()));
}

/// What the codecs of this stage have come to.
void Trainer::tell_codecs() {
  if (const std::string news = exchange_->codecs().news(); !news.empty()) {
    note(layout_.pipelined() ? fmt::format("stage {}: {}", ranks_->stage(), news) : news);
  }
}

/// Of all stages, on rank 0.
std::string Trainer::all_codec_choices() {
  const std::string mine = exchange_->codecs().state();
  if (adaprec_) {
    return mine;  // the same everywhere
  }
  std::string all;
  for (const auto& one : parallel::gather(ranks_->pipeline(), std::as_bytes(std::span(mine)))) {
    all.append(reinterpret_cast<const char*>(one.data()), one.size());
  }
  return all;
}

void Trainer::finish(bool finished) {
  if (last_saved_ != step_ && config_.train.checkpoint_every >= 0) {
    checkpoint();
  }
  compare_ranks(stage_->store(), ranks_->data());
  const auto pipeline = record_pipeline(directory_->root(), layout_, *pipeline_, *ranks_);
  write_summary({.config = config_,
                 .directory = directory_->root(),
                 .stage = *stage_,
                 .arena = backend_->arena(),
                 .fit = fit_,
                 .totals = totals_,
                 .grid = layout_.grid,
                 .pipeline = pipeline,
                 .steps = step_,
                 .finished = finished,
                 .git = options_.git},
                comm_);
  if (config_.run.trace) {
    write_traces(directory_->root() / "trace.json", trace_, comm_);
  }
}

/// The first steps, and then twenty over the run: enough to see how dense and sparse steps look.
bool Trainer::traced(int64_t step) const {
  const int64_t spacing = std::max<int64_t>(config_.train.steps / 20, 1);
  return config_.run.trace && (step < 3 || step % spacing < 2);
}

void Trainer::record_trace(bool on) { Trace::install(on ? &trace_ : nullptr); }

void Trainer::note(const std::string& text) const {
  if (options_.on_note) {
    options_.on_note(text);
  }
}

}  // namespace espalier::train
