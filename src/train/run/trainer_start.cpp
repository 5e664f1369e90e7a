// How a rank comes to its first step: data, plan, communicators, stage, weights, storages.
#include <algorithm>
#include <array>
#include <iterator>
#include <thread>

#include "parallel/transport/collectives.h"
#include "src/train/exchange/device_transfer.h"
#include "src/train/exchange/low_rank_codec.h"
#include "src/train/memory/planner.h"
#include "src/train/memory/storage_choice.h"
#include "src/train/run/agreement.h"
#include "src/train/run/snapshot.h"
#include "src/train/run/trainer.h"

namespace espalier::train {
namespace {

int threads_of(const io::Config& config, const parallel::Communicator& comm) {
  if (config.run.threads > 0) {
    return static_cast<int>(config.run.threads);
  }
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / comm.local_size());
}

/// A checkpoint fits a config only if the settings agree that shapes do not determine.
void check_same_model(const io::Config& config, const io::Config& saved, const std::string& file) {
  auto same = [&file](std::string_view key, std::string_view here, std::string_view there) {
    check(here == there,
          "{} is a checkpoint of another model: model.{} is {} there and {} in the config", file,
          key, there, here);
  };
  same("kind", config.model.kind, saved.model.kind);
  const model::NetworkKind& network = model::network_of(config.model);
  const model::Settings here = network.identity(config.model);
  const model::Settings there = network.identity(saved.model);
  for (size_t i = 0; i < here.size(); ++i) {
    same(here[i].first, here[i].second, there[i].second);
  }
}

/// Which layers train.fp8 leaves out, if any.
std::string left_out_of_fp8(const io::Config& config, const sparse::Store& store) {
  int hidden = 0;
  int left_out = 0;
  for (const sparse::Parameter& parameter : store.parameters()) {
    const bool by_kept = !parameter.storage.dense_products;
    hidden += parameter.spec.prunable ? 1 : 0;
    left_out += parameter.spec.prunable && by_kept && config.pruning.method != "none" ? 1 : 0;
  }
  return config.train.fp8 && left_out > 0
             ? fmt::format(
                   "train.fp8: once pruned, {} of {} hidden layers are not rounded: their "
                   "storage computes with kept elements alone",
                   left_out, hidden)
             : "";
}

}  // namespace

Trainer::Trainer(const io::Config& config, parallel::Communicator& comm, TrainerOptions options)
    : config_(config), comm_(comm), options_(std::move(options)), loss_scale_(config.train) {
  comm_.set_timeout(config_.parallel.timeout_s);
  start();
}

Trainer::~Trainer() { Trace::install(nullptr); }

void Trainer::start() {
  compare_settings(config_, comm_);
  directory_ = std::make_unique<RunDirectory>(config_.run.out, options_.resume, comm_);
  on_first_rank_first(comm_, [&] { open_data(); });
  time_layers();
  link_stages();
  on_first_rank_first(comm_, [&] { plan(); });
  tell_stage_link();
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
    check_low_rank(config_, stage_->store(), pruner_->prunable());
  });
  settle_storages();
  if (const std::string text = left_out_of_fp8(config_, stage_->store()); !text.empty()) {
    note(text);
  }
  compare_ranks(stage_->store(), ranks_->data());
  count_totals();
  if (started_pruned_) {
    pruner_->compare(ranks_->data());
    note(
        fmt::format("pruned from the start: {} of {} parameters kept", totals_.kept, totals_.size));
  }
  stage_sums_ = std::make_unique<StageSums>(layout_, *ranks_, *stage_, stage_link_.carrier);
  exchange_ = std::make_unique<Exchange>(config_, *ranks_, *stage_, shards, *stage_sums_);
  if (!exchange_->way().empty()) {
    note(exchange_->way());
  }
  if (const auto& file = directory_->resume_file(); file) {
    on_first_rank_first(comm_, [&] {
      const io::CheckpointReader reader(*file);
      load_low_rank(reader, stage_->store(), exchange_->low_rank());
      const Progress saved = progress_of(reader);
      exchange_->codecs().restore(saved.codec_choice);
      loss_scale_.restore(saved.loss_scale);
    });
  }
  tell_codecs();
  stage_->set_gradient_scale(loss_scale_.value(), loss_scale_.left_out());
  pipeline_ = std::make_unique<Pipeline>(
      config_, layout_, *ranks_, *stage_,
      Pipeline::Options{
          .samples = micro_batch_, .carrier = stage_link_.carrier, .sums = stage_sums_.get()});
  directory_->begin(config_, directory_->resume_file() ? step_ : -1);
  if (config_.parallel.codec.fallback == "adaprec" && layout_.grid.data > 1) {
    make_adaprec();
  }
}

void Trainer::make_adaprec() {
  // A tenth of an evaluation: a trial's curve has several.
  const int64_t batches = std::max<int64_t>(config_.train.eval_batches / 10, 1);
  const AdaPrec::Hands hands{
      .use = [this](const std::string& codec) { exchange_->codecs().use(codec); },
      .train = [this](int64_t step) { train_trial(step); },
      .evaluate = [this, batches] { return evaluate(batches); },
      .copy = [this] { return StateCopy(stage_->store()); }};
  adaprec_ =
      std::make_unique<AdaPrec>(config_, comm_, hands, directory_->resume_file() ? step_ : -1);
}

void Trainer::open_data() {
  const io::Vocabulary characters = saved_characters();
  source_ = open_source(config_, characters.size() > 0 ? &characters : nullptr);
  const kernels::Kernels& kernels =
      options_.kernels != nullptr ? *options_.kernels : kernels::by_name(config_.run.backend);
  backend_ =
      std::make_unique<kernels::Backend>(kernels, threads_of(config_, comm_), comm_.local_rank());
  backend_->stream().allow_tf32(config_.train.tf32);
  backend_->stream().set_deterministic(config_.run.deterministic);
  problem_ = problem_of(*source_);
  layers_ = make_layers(config_, problem_);
  for (const auto& layer : layers_) {
    std::ranges::move(layer->parameters(), std::back_inserter(network_));
  }
  start_ = start_of(config_, network_, {.resume = directory_->resume_file(), .init = options_.init},
                    config_.parallel.pipeline == 1 ? backend_->stream().threads() : 1);
  if (config_.parallel.pipeline > 0) {
    share_of(config_, parallel::make_grid(comm_.size(), static_cast<int>(config_.parallel.pipeline))
                          .data);  // told before anything takes time
  }
}

/// Where layers are to be dealt out, and neither the user nor the run that goes on has done so:
/// rank 0 times them for all.
void Trainer::time_layers() {
  io::ParallelConfig& parallel = config_.parallel;
  layer_times_ = estimated_times(config_, problem_);
  if (parallel.pipeline == 1) {
    return;
  }
  if (parallel.partition.empty()) {
    parallel.partition = saved_partition();
  }
  const int64_t samples = config_.train.micro_batch > 0 ? config_.train.micro_batch : 1;
  if (parallel.partition.empty()) {
    if (comm_.rank() == 0) {
      const Span span(Track::compute, "time layers");
      layer_times_ = measured_times(config_, problem_, start_.kept, samples, *backend_);
    }
    parallel::broadcast(comm_, 0, std::as_writable_bytes(std::span(layer_times_.layers)));
  }
  if (parallel.schedule == "message-driven" && parallel.in_flight == 0 && comm_.size() > 1) {
    const model::Flow flow = layers_.front()->output(samples, dtype_by_name(config_.train.dtype));
    layer_times_.latency = measured_latency(comm_, flow.bytes());
  }
}

/// Whether there will be stages may not be known yet.
void Trainer::link_stages() {
  if (config_.parallel.pipeline != 1) {
    stage_link_ = choose_stage_link(config_, comm_, backend_->stream());
  }
  sums_on_device_ = sums_on_device(config_, comm_, backend_->stream());
}

void Trainer::tell_stage_link() const {
  if (!layout_.pipelined()) {
    return;
  }
  if (!stage_link_.why.empty()) {
    throw SharedFailure(fmt::format("parallel.device_link = \"{}\" cannot be had: {}",
                                    config_.parallel.device_link, stage_link_.why));
  }
  if (!stage_link_.way.empty()) {
    note(stage_link_.way);
  }
}

void Trainer::plan() {
  Plan plan = make_plan({.config = config_,
                         .problem = problem_,
                         .start = start_,
                         .times = layer_times_,
                         .ranks = comm_.size(),
                         .rank = comm_.rank(),
                         .threads = backend_->stream().threads(),
                         .place = kernels::planning(backend_->kernels()),
                         .carrier = stage_link_.carrier,
                         .sums_on_device = sums_on_device_,
                         .available = backend_->arena().available()});
  for (const std::string& text : plan.notes) {
    note(text);
  }
  layout_ = std::move(plan.layout);
  config_.parallel.pipeline = plan.pipeline;
  if (layout_.pipelined()) {
    config_.parallel.partition = layout_.partition();
  }
  fit_ = std::move(plan.fit);
  backend_->arena().set_advice(std::move(plan.advice));
  rank_samples_ = share_of(config_, layout_.grid.data);
  micro_batch_ = fit_.choice.micro_batch;
}

void Trainer::make_stage(const std::shared_ptr<Shards>& shards) {
  const std::vector<PartShape> parts = layout_.parts(ranks_->stage());
  Start mine = start_of_part(start_, parameters_of(layers_, parts));
  started_pruned_ = mine.pruned;
  backend_->arena().set_limit(fit_.arena_limit());
  stage_ = std::make_unique<Stage>(config_, problem_, backend_->stream(), backend_->kernels(),
                                   Stage::Options{.micro_batch = micro_batch_,
                                                  .recompute = fit_.recompute(ranks_->stage()),
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
  const parallel::Grid& grid = layout_.grid;
  const int stride = grid.data > 1 ? grid.rank_of({.stage = 0, .replica = 1}) : 1;
  if (!layout_.pipelined()) {
    return {.replicas = grid.data, .replica_stride = stride, .low_rank = &exchange_->low_rank()};
  }
  Owners owners{.network = network_,
                .ranks = std::vector<int>(network_.size(), 0),
                .replicas = grid.data,
                .replica_stride = stride,
                .low_rank = &exchange_->low_rank()};
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

/// Codes between stages are lossy, so that other stages would be a break in a run. Empty where
/// nothing goes on, or in stages that do not correspond.
std::vector<int64_t> Trainer::saved_partition() const {
  if (!directory_->resume_file()) {
    return {};
  }
  const io::CheckpointReader reader(*directory_->resume_file());
  const io::ParallelConfig before = progress_of(reader).config.parallel;
  const io::ParallelConfig& now = config_.parallel;
  const auto shape = [](const io::ParallelConfig& parallel) {
    return std::tuple(parallel.pipeline, parallel.schedule, parallel.virtual_stages);
  };
  return shape(before) == shape(now) ? before.partition : std::vector<int64_t>();
}

void Trainer::load_start() {
  sparse::Store& store = stage_->store();
  if (const auto& file = directory_->resume_file(); file) {
    const io::CheckpointReader reader(*file);
    load(reader, store, true, !layout_.pipelined());
    load_feedback(reader, store, ranks_->replica(), layout_.grid.data);
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
                              backend_->stream().threads(), stage_->kernels());
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

}  // namespace espalier::train
