#include "src/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "parallel/collectives.h"
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
    record_trace(traced(step_));
    StepReport report = train_step();
    after_step(report);
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

StepReport Trainer::train_step() {
  using parallel::Traffic;
  const double begin = now_seconds();
  const auto sent_before = comm_.sent();
  const auto allreduce_before = comm_.sent(Traffic::allreduce);
  const auto p2p_before = comm_.sent(Traffic::point_to_point);
  prune_if_due();
  const double lr = optim::learning_rate(config_.optimizer, step_, config_.train.steps);

  const auto [loss, stop] = combine(pipeline_->train(pipeline_step(exchange_.get())));
  if (!std::isfinite(loss)) {
    throw SharedFailure(fmt::format(
        "the loss is {} at step {}: stopped before the update; the newest checkpoint is {}. Lower "
        "optimizer.lr, set optimizer.clip, or look at the data",
        std::isnan(loss) ? "NaN" : "infinite", step_ + 1,
        last_saved_ < 0 ? "none" : directory_->checkpoint_path(last_saved_).string()));
  }
  optim::StepResult update;
  const double update_begin = now_seconds();
  {
    const Span span(Track::optimizer, "update");
    update = exchange_->update(step_, lr);
  }
  if (!update.applied) {
    throw SharedFailure(fmt::format(
        "the gradient norm is {} at step {} (loss {:.6g}): stopped before the update; lower "
        "optimizer.lr, set optimizer.clip, or look at the data",
        update.gradient_norm, step_ + 1, loss));
  }
  const double update_seconds = now_seconds() - update_begin;
  ++step_;
  stopping_ = stop;
  const double seconds = now_seconds() - begin;
  const auto rows = static_cast<double>(config_.train.global_batch * source_->rows());
  return {.step = step_,
          .loss = loss,
          .lr = lr,
          .grad_norm = update.gradient_norm,
          .seconds = seconds,
          .tokens_per_s = rows / seconds,
          .times = {.compute = pipeline_->times().compute,
                    .waited = pipeline_->times().waited,
                    .collective = pipeline_->collective_seconds(),
                    .update = update_seconds},
          .bytes_sent = comm_.sent().bytes - sent_before.bytes,
          .allreduce_bytes = comm_.sent(Traffic::allreduce).bytes - allreduce_before.bytes,
          .p2p_bytes = comm_.sent(Traffic::point_to_point).bytes - p2p_before.bytes,
          .sparsity = totals_.sparsity.sparsity(),
          .val_loss = {}};
}

/// The coming step of this replica. Without an exchange gradients stay unsummed.
Pipeline::Step Trainer::pipeline_step(Exchange* exchange) {
  const int64_t first = ranks_->replica() * rank_samples_;
  return {.step = step_,
          .first_sample = first,
          .loss_scale = 1.0 / static_cast<double>(config_.train.global_batch * source_->rows()),
          .load =
              [this, first](int64_t number, const Part::Feed& feed) {
                source_->train(step_, first + number * micro_batch_, feed.inputs, feed.targets);
              },
          .exchange = exchange};
}

std::pair<double, bool> Trainer::combine(double loss_sum) {
  const bool stop = options_.stop_requested && options_.stop_requested();
  std::array<double, 2> values{loss_sum, stop ? 1.0 : 0.0};
  parallel::all_reduce_small(comm_, values, parallel::Combine::sum);
  const auto rows = static_cast<double>(config_.train.global_batch * source_->rows());
  return {values[0] / rows, values[1] > 0};
}

double Trainer::evaluate() {
  const Span span(Track::compute, "evaluation");
  const int64_t samples = std::min(source_->validation_samples(),
                                   config_.train.eval_batches * config_.train.global_batch);
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
  auto every = [&](int64_t interval) { return interval > 0 && step_ % interval == 0; };
  const bool last = step_ >= config_.train.steps;
  if (every(config_.train.eval_every) || last) {
    report.val_loss = evaluate();
  }
  nlohmann::ordered_json line = metrics_line(report);
  directory_->write_metrics(line);
  if (every(config_.parallel.check_every)) {
    compare_ranks(stage_->store(), ranks_->data());
  }
  if (every(config_.train.checkpoint_every)) {
    checkpoint();
  }
  if (options_.on_step) {
    options_.on_step(report);
  }
}

void Trainer::checkpoint() {
  const Span span(Track::io, "checkpoint");
  const Progress progress{.step = step_, .config = config_, .characters = source_->characters()};
  const auto path = directory_->checkpoint_path(step_);
  save(path, stage_->store(), progress, comm_, owners());
  last_saved_ = step_;
  if (comm_.rank() == 0) {
    io::prune_checkpoints(directory_->checkpoints(), config_.train.keep_checkpoints);
  }
  note(fmt::format("checkpoint {}", path.string()));
}

void Trainer::finish(bool finished) {
  if (last_saved_ != step_ && config_.train.checkpoint_every >= 0) {
    checkpoint();
  }
  compare_ranks(stage_->store(), ranks_->data());
  const auto pipeline = record_pipeline(directory_->root(), layout_, pipeline_->times(), *ranks_);
  write_summary({.config = config_,
                 .directory = directory_->root(),
                 .stage = *stage_,
                 .arena = arena_,
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
