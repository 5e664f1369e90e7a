#include "src/train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
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
  on_first_rank_first(comm_, [&] {
    const io::Vocabulary characters = saved_characters();
    source_ = open_source(config_, characters.size() > 0 ? &characters : nullptr);
    stream_ = std::make_unique<Stream>(arena_, threads_of(config_, comm_));
    plan();
  });
  ranks_ = std::make_unique<Ranks>(comm_, layout_.grid);
  const std::shared_ptr<Shards> shards = make_shards(config_, ranks_->data());
  on_first_rank_first(comm_, [&] {
    make_stage(shards);
    StoreScope scope;
    if (layout_.pipelined()) {
      scope = {.network = network_,
               .numbers = parameters_of(layers_, layout_.parts(ranks_->stage())),
               .stages = &ranks_->pipeline()};
    }
    pruner_ = std::make_unique<Pruner>(config_, stage_->store(), scope);
    load_start();
  });
  settle_storages();
  compare_ranks(stage_->store(), ranks_->data());
  count_totals();
  if (started_pruned_) {
    pruner_->compare(ranks_->data());
    note(
        fmt::format("pruned from the start: {} of {} parameters kept", totals_.kept, totals_.size));
  }
  exchange_ = std::make_unique<Exchange>(config_, *ranks_, *stage_, shards);
  pipeline_ = std::make_unique<Pipeline>(layout_, *ranks_, *stage_, micro_batch_);
  directory_->begin(config_, directory_->resume_file() ? step_ : -1);
}

/// Everything that is decided before anything is allocated: it depends on config and data alone.
void Trainer::plan() {
  problem_ = problem_of(*source_);
  layers_ = make_layers(config_, problem_);
  for (const auto& layer : layers_) {
    std::ranges::move(layer->parameters(), std::back_inserter(network_));
  }
  start_ =
      start_of(config_, network_, {.resume = directory_->resume_file(), .init = options_.init});
  layer_costs_ = estimated_costs(config_, problem_);
  const parallel::Grid grid =
      parallel::make_grid(comm_.size(), static_cast<int>(config_.parallel.pipeline));
  rank_samples_ = share_of(config_, grid.data);
  RunShape run{.problem = problem_,
               .ranks = grid.data,
               .threads = stream_->threads(),
               .start = start_,
               .sharding = plan_shards(config_, grid.place_of(comm_.rank()).replica, grid.data)};
  if (grid.pipeline > 1) {
    run.stages = [this](int64_t micro_batches) { return stages_for(micro_batches); };
  }
  fit_ = fit_memory(config_, run);
  if (!fit_.note.empty()) {
    note(fit_.note);
  }
  micro_batch_ = fit_.choice.micro_batch;
  layout_ = layout_for(rank_samples_ / micro_batch_);
}

Layout Trainer::layout_for(int64_t micro_batches) const {
  return make_layout(config_, comm_.size(), micro_batches, layer_costs_);
}

std::vector<StageShape> Trainer::stages_for(int64_t micro_batches) const {
  const Layout layout = layout_for(micro_batches);
  const std::vector<bool> prunable = prunable_of(network_, config_.pruning);
  std::vector<StageShape> stages;
  for (int rank = 0; rank < layout.grid.pipeline; ++rank) {
    const std::vector<PartShape> parts = layout.parts(rank);
    const std::vector<size_t> numbers = parameters_of(layers_, parts);
    StageShape stage{.parts = parts, .start = start_of_part(start_, numbers)};
    for (const size_t number : numbers) {
      if (network_[number].prunable && !prunable[number]) {
        stage.exclude.push_back(network_[number].name);
      }
    }
    stages.push_back(std::move(stage));
  }
  return stages;
}

void Trainer::make_stage(const std::shared_ptr<Shards>& shards) {
  const std::vector<PartShape> parts = layout_.parts(ranks_->stage());
  Start mine = start_of_part(start_, parameters_of(layers_, parts));
  started_pruned_ = mine.pruned;
  arena_.set_limit(fit_.arena_limit());
  stage_ =
      std::make_unique<Stage>(config_, problem_, *stream_, kernels::by_name(config_.run.backend),
                              Stage::Options{.micro_batch = micro_batch_,
                                             .recompute = fit_.choice.recompute,
                                             .masks = std::move(mine.masks),
                                             .sharding = shards,
                                             .parts = parts});
  start_ = {};
}

/// Sums over the stages of a replica.
void Trainer::count_totals() {
  const Sparsity mine = pruner_->sparsity();
  std::array<double, 4> counts{static_cast<double>(stage_->store().total_size()),
                               static_cast<double>(stage_->store().total_kept()),
                               static_cast<double>(mine.prunable),
                               static_cast<double>(mine.prunable_kept)};
  parallel::all_reduce_small(ranks_->pipeline(), counts, parallel::Combine::sum);
  auto whole = [&counts](size_t i) { return static_cast<int64_t>(counts.at(i)); };
  totals_ = {.size = whole(0),
             .kept = whole(1),
             .sparsity = {.prunable = whole(2), .prunable_kept = whole(3)}};
}

/// Rank of the first replica of each parameter's stage.
Owners Trainer::owners() const {
  if (!layout_.pipelined()) {
    return {};
  }
  Owners owners{.network = network_, .ranks = std::vector<int>(network_.size(), 0)};
  for (int rank = 0; rank < layout_.grid.pipeline; ++rank) {
    const std::vector<PartShape> parts = layout_.parts(rank);
    for (const size_t number : parameters_of(layers_, parts, false)) {
      owners.ranks[number] = layout_.grid.rank_of({.stage = rank, .replica = 0});
    }
  }
  return owners;
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
    load(reader, store, true, !layout_.pipelined());
    step_ = reader.meta().step;
    last_saved_ = step_;
    note(fmt::format("resumed from {} at step {}", reader.path().string(), step_));
  } else if (!options_.init.empty()) {
    load_weights(options_.init, store, pruner_->prunable(), !layout_.pipelined());
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
  agree_on_storages(groups, ranks_->data());
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
  write_summary({.config = config_,
                 .directory = directory_->root(),
                 .stage = *stage_,
                 .arena = arena_,
                 .fit = fit_,
                 .totals = totals_,
                 .grid = layout_.grid,
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
