#include "src/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "parallel/collectives.h"
#include "src/optim/schedule.h"
#include "src/train/agreement.h"
#include "src/train/snapshot.h"
#include "src/train/storage_choice.h"
#include "src/train/summary.h"

namespace espalier::train {
namespace {

int threads_of(const io::Config& config, const parallel::Communicator& comm) {
  if (config.run.threads > 0) {
    return static_cast<int>(config.run.threads);
  }
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / comm.local_size());
}

/// A checkpoint fits a config only when what shapes alone do not show is equal, too.
void check_same_model(const io::Config& config, const io::Config& saved, const std::string& file) {
  auto same = [&file](std::string_view key, const auto& here, const auto& there) {
    check(here == there,
          "{} is a checkpoint of another model: model.{} is {} there and {} in the config", file,
          key, there, here);
  };
  same("kind", config.model.kind, saved.model.kind);
  if (config.model.kind == "gpt") {
    same("layers", config.model.layers, saved.model.layers);
    same("heads", config.model.heads, saved.model.heads);
    same("width", config.model.width, saved.model.width);
    same("context", config.model.context, saved.model.context);
    same("tie_embeddings", config.model.tie_embeddings, saved.model.tie_embeddings);
  }
}

}  // namespace

Trainer::Trainer(const io::Config& config, parallel::Communicator& comm, TrainerOptions options)
    : config_(config), comm_(comm), options_(std::move(options)) {
  comm_.set_timeout(config_.parallel.timeout_s);
  start();
}

Trainer::~Trainer() { Trace::install(nullptr); }

void Trainer::start() {
  directory_ = std::make_unique<RunDirectory>(config_.run.out, options_.resume, comm_);
  const std::shared_ptr<Shards> shards = make_shards(config_, comm_);
  on_first_rank_first(comm_, [&] {
    rank_samples_ = share_of(config_, comm_.size());
    const io::Vocabulary characters = saved_characters();
    source_ = open_source(config_, characters.size() > 0 ? &characters : nullptr);
    stream_ = std::make_unique<Stream>(arena_, threads_of(config_, comm_));
    make_stage(shards);
    pruner_ = std::make_unique<Pruner>(config_, stage_->store());
    load_start();
  });
  settle_storages();
  compare_ranks(stage_->store(), comm_);
  if (started_pruned_) {
    pruner_->compare(comm_);
    note(fmt::format("pruned from the start: {} of {} parameters kept",
                     stage_->store().total_kept(), stage_->store().total_size()));
  }
  exchange_ = std::make_unique<Exchange>(config_, comm_, *stage_, shards);
  directory_->begin(config_, directory_->resume_file() ? step_ : -1);
}

/// Plans the memory of the run, then allocates the first of it.
void Trainer::make_stage(const std::shared_ptr<Shards>& shards) {
  const ProblemShape problem = problem_of(*source_);
  RunShape run{.problem = problem,
               .ranks = comm_.size(),
               .threads = stream_->threads(),
               .start = start_of(config_, make_network(config_, problem).parameters(),
                                 {.resume = directory_->resume_file(), .init = options_.init}),
               .sharding = make_shards(config_, comm_)};
  fit_ = fit_memory(config_, run);
  if (!fit_.note.empty()) {
    note(fit_.note);
  }
  micro_batch_ = fit_.choice.micro_batch;
  started_pruned_ = run.start.pruned;
  arena_.set_limit(fit_.arena_limit());
  stage_ =
      std::make_unique<Stage>(config_, problem, *stream_, kernels::by_name(config_.run.backend),
                              Stage::Options{.micro_batch = micro_batch_,
                                             .recompute = fit_.choice.recompute,
                                             .masks = std::move(run.start.masks),
                                             .sharding = shards});
}

/// The vocabulary of the checkpoint that the run starts from, which is checked to be of this model.
io::Vocabulary Trainer::saved_characters() const {
  const std::optional<std::filesystem::path>& resume = directory_->resume_file();
  if (!resume && (options_.init.empty() || !io::is_checkpoint(options_.init))) {
    return {};
  }
  const std::filesystem::path file = resume ? *resume : std::filesystem::path(options_.init);
  const Progress saved = progress_of(io::CheckpointReader(file));
  check_same_model(config_, saved.config, file.string());
  return saved.characters;
}

void Trainer::load_start() {
  sparse::Store& store = stage_->store();
  if (const auto& file = directory_->resume_file(); file) {
    const io::CheckpointReader reader(*file);
    load(reader, store, true);
    step_ = reader.meta().step;
    last_saved_ = step_;
    note(fmt::format("resumed from {} at step {}", reader.path().string(), step_));
  } else if (!options_.init.empty()) {
    load_weights(options_.init, store, pruner_->prunable());
    note(fmt::format("weights and masks from {}", options_.init));
  } else {
    store.initialise(static_cast<uint64_t>(config_.train.seed));
  }
}

/// Storages left to "auto" are timed for the density that pruning will reach.
void Trainer::settle_storages() {
  if (!has_auto_storage(config_, stage_->store())) {
    return;
  }
  const Span span(Track::compute, "time storages");
  auto groups = time_storages({.config = config_,
                               .store = stage_->store(),
                               .prunable = pruner_->prunable(),
                               .density = 1 - pruner_->target(config_.train.steps),
                               .rows = micro_batch_ * source_->rows()},
                              stream_->threads(), stage_->kernels());
  std::optional<size_t> budget;
  if (fit_.budget > 0 && !groups.empty()) {
    budget = fit_.budget - fit_.plan.needed() + planned_bytes(groups);
  }
  choose_storages(groups, budget);
  agree_on_storages(groups, comm_);
  apply_storages(groups, stage_->store());
  if (!groups.empty()) {
    note("storages, by time of a forward and backward:\n" + storage_table(groups));
  }
}

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
  const double before = pruner_->sparsity().sparsity();
  const Change change =
      pruner_->change(step_, comm_, [this] { stage_->forward_backward(load_micro_batch(0)); });
  for (const std::string& warning : change.warnings) {
    note("pruning: " + warning);
  }
  const double after = pruner_->sparsity().sparsity();
  if (change.grown > 0) {
    note(fmt::format("masks moved after step {}: {} elements are new", step_, change.grown));
  }
  if (change.grown > 0 && after == before) {
    return;
  }
  note(fmt::format("pruned after step {}: sparsity {:.4f} -> {:.4f} ({} of {} parameters kept)",
                   step_, before, after, stage_->store().total_kept(),
                   stage_->store().total_size()));
}

StepReport Trainer::train_step() {
  using parallel::Traffic;
  const double begin = now_seconds();
  const auto sent_before = comm_.sent();
  const auto allreduce_before = comm_.sent(Traffic::allreduce);
  const auto p2p_before = comm_.sent(Traffic::point_to_point);
  prune_if_due();
  const double lr = optim::learning_rate(config_.optimizer, step_, config_.train.steps);

  const auto [loss, stop] = combine(accumulate_gradients());
  if (!std::isfinite(loss)) {
    throw SharedFailure(fmt::format(
        "the loss is {} at step {}: stopped before the update; the newest checkpoint is {}. Lower "
        "optimizer.lr, set optimizer.clip, or look at the data",
        std::isnan(loss) ? "NaN" : "infinite", step_ + 1,
        last_saved_ < 0 ? "none" : directory_->checkpoint_path(last_saved_).string()));
  }
  optim::StepResult update;
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
          .bytes_sent = comm_.sent().bytes - sent_before.bytes,
          .allreduce_bytes = comm_.sent(Traffic::allreduce).bytes - allreduce_before.bytes,
          .p2p_bytes = comm_.sent(Traffic::point_to_point).bytes - p2p_before.bytes,
          .sparsity = pruner_->sparsity().sparsity(),
          .val_loss = {}};
}

/// Reads the micro-batch of the coming step that begins at sample `done` of this rank's share.
MicroBatch Trainer::load_micro_batch(int64_t done) {
  const Span span(Track::io, "load batch");
  const MicroBatch batch{
      .samples = micro_batch_,
      .step = step_,
      .first_sample = comm_.rank() * rank_samples_ + done,
      .loss_scale = 1.0 / static_cast<double>(config_.train.global_batch * source_->rows()),
      .accumulate = done > 0};
  source_->train(step_, batch.first_sample, stage_->inputs(micro_batch_),
                 stage_->targets(micro_batch_));
  return batch;
}

/// All micro-batches of the step; what this rank steps of the flat gradient holds the sum over ranks
/// afterwards. Returns this rank's sum of losses.
double Trainer::accumulate_gradients() {
  exchange_->begin();
  double loss_sum = 0;
  for (int64_t done = 0; done < rank_samples_; done += micro_batch_) {
    const MicroBatch batch = load_micro_batch(done);
    const bool last = done + micro_batch_ == rank_samples_;
    loss_sum += stage_->forward_backward(batch, [&](int64_t end) {
      if (last) {
        exchange_->ready(end);
      }
    });
  }
  exchange_->finish();
  return loss_sum;
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
  const int64_t first = samples * comm_.rank() / comm_.size();
  const int64_t end = samples * (comm_.rank() + 1) / comm_.size();
  double sum = 0;
  for (int64_t at = first; at < end; at += micro_batch_) {
    const int64_t n = std::min(micro_batch_, end - at);
    source_->validation(at, stage_->inputs(n), stage_->targets(n));
    sum += stage_->evaluate(n);
  }
  std::array<double, 1> total{sum};
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
    compare_ranks(stage_->store(), comm_);
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
  save(path, stage_->store(), progress, comm_);
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
  compare_ranks(stage_->store(), comm_);
  write_summary({.config = config_,
                 .directory = directory_->root(),
                 .stage = *stage_,
                 .arena = arena_,
                 .fit = fit_,
                 .sparsity = pruner_->sparsity(),
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
