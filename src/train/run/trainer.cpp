#include "src/train/run/trainer.h"

#include <algorithm>
#include <array>

#include "parallel/transport/collectives.h"
#include "parallel/transport/device/lookout.h"
#include "src/train/run/agreement.h"
#include "src/train/run/snapshot.h"
#include "src/train/run/summary.h"
#include "src/train/stage/pipeline_record.h"

namespace espalier::train {

RunResult Trainer::run() {
  const int64_t last = options_.stop_after > 0 ? std::min(options_.stop_after, config_.train.steps)
                                               : config_.train.steps;
  while (step_ < last && !stopping_) {
    if (adaprec_ && adaprec_->due(step_)) {
      note(adaprec_->round(step_));
    }
    record_trace(traced(step_));
    layout_.asynchronous() ? train_segment(last) : train_step(last);
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

void Trainer::after_step(StepReport report) {
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
  tell_recordings();
  if (options_.on_step) {
    options_.on_step(report);
  }
}

void Trainer::checkpoint() {
  const Span span(Track::io, "checkpoint");
  const Progress progress{.step = step_,
                          .config = config_,
                          .characters = source_->characters(),
                          .codec_choice = all_codec_choices(),
                          .loss_scale = loss_scale_.state()};
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

/// What had to be asked for call by call.
void Trainer::tell_recordings() {
  for (const auto& part : stage_->parts()) {
    if (const std::string why = part->take_news(); !why.empty()) {
      note("run.graphs: a pass is not recorded, and goes on call by call: " + why);
    }
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

void Trainer::record_trace(bool on) {
  parallel::Lookout::look_all();  // sums that have ended are in the trace
  Trace::install(on ? &trace_ : nullptr);
}

void Trainer::note(const std::string& text) const {
  if (options_.on_note) {
    options_.on_note(text);
  }
}

}  // namespace espalier::train
