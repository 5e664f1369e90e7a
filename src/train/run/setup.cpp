#include "src/train/run/setup.h"

#include <array>
#include <optional>
#include <thread>

#include "parallel/transport/collectives.h"
#include "src/core/trace.h"
#include "src/train/exchange/agreement.h"
#include "src/train/exchange/low_rank_codec.h"
#include "src/train/memory/storage_choice.h"
#include "src/train/run/snapshot.h"

namespace espalier::train {
namespace {

int threads_of(const io::Config& config, const parallel::Communicator& comm) {
  if (config.run.threads > 0) {
    return static_cast<int>(config.run.threads);
  }
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / comm.local_size());
}

/// Compares the settings that shapes do not determine: a checkpoint must agree with the config.
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

/// The vocabulary of the checkpoint to start from; the checkpoint must be of this model.
io::Vocabulary saved_characters(const io::Config& config, const StartFiles& files) {
  if (!files.resume && (files.init.empty() || !io::is_checkpoint(files.init))) {
    return {};
  }
  const std::filesystem::path file =
      files.resume ? *files.resume : std::filesystem::path(files.init);
  const Progress saved = progress_of(io::CheckpointReader(file));
  check_same_model(config, saved.config, file.string());
  return saved.characters;
}

/// The layers that train.fp8 does not round, for the user; empty: all are rounded.
std::string fp8_note(const io::Config& config, const sparse::Store& store) {
  int hidden = 0;
  int unrounded = 0;
  for (const sparse::Parameter& parameter : store.parameters()) {
    const bool by_kept = !parameter.storage.dense_products;
    hidden += parameter.spec.prunable ? 1 : 0;
    unrounded += parameter.spec.prunable && by_kept && config.pruning.prunes() ? 1 : 0;
  }
  return config.train.fp8 && unrounded > 0
             ? fmt::format(
                   "train.fp8: once pruned, {} of {} hidden layers are not rounded: their "
                   "storage computes with kept elements only",
                   unrounded, hidden)
             : "";
}

/// The inputs of a plan, kept until the stage is built.
struct Opened {
  StartFiles files;
  model::Layers layers;  ///< of the network, not bound
  Start start;
};

/// Opens data and device, and reads or makes the initial masks.
Opened open(const io::Config& config, const TrainerOptions& options, Run& run) {
  Opened opened{.files = {.resume = run.directory->resume_file(), .init = options.init}};
  const io::Vocabulary characters = saved_characters(config, opened.files);
  run.source = open_source(config, characters.size() > 0 ? &characters : nullptr);
  const kernels::Kernels& kernels =
      options.kernels != nullptr ? *options.kernels : kernels::by_name(config.run.backend);
  run.backend = std::make_unique<kernels::Backend>(kernels, threads_of(config, run.comm),
                                                   run.comm.local_rank());
  Stream& stream = run.backend->stream();
  stream.allow_tf32(config.train.tf32);
  stream.set_deterministic(config.run.deterministic);
  opened.layers = model::make_layers(config.model, run.source->problem());
  opened.start = start_of(config, model::parameters_of(opened.layers), opened.files,
                          config.parallel.pipeline == 1 ? stream.threads() : 1);
  if (config.parallel.pipeline > 0) {  // fail before expensive work
    const auto stages = static_cast<int>(config.parallel.pipeline);
    share_of(config, parallel::make_grid(run.comm.size(), stages).data);
  }
  return opened;
}

void build_stage(const Start& start, const std::shared_ptr<Shards>& shards, Run& run) {
  const RunPlan& plan = *run.plan;
  Start mine = start_of_part(start, plan.parameters);
  run.starts_pruned = mine.pruned;
  run.backend->arena().set_limit(plan.fit.arena_limit());
  run.stage = std::make_unique<Stage>(
      plan.config, plan.problem, run.backend->stream(), run.backend->kernels(),
      Stage::Options{.micro_batch = plan.micro_batch(),
                     .recompute = plan.fit.recompute(run.ranks->stage()),
                     .masks = std::move(mine.masks),
                     .sharding = shards,
                     .parts = plan.parts});
  StoreScope scope;
  if (plan.layout.pipelined()) {
    scope = {.network = plan.specs, .numbers = plan.parameters, .stages = &run.ranks->pipeline()};
  }
  run.pruner = std::make_unique<Pruner>(plan.config, run.stage->store(), scope);
}

/// Loads or draws the weights, and the optimizer state of a checkpoint.
void load_weights_and_state(const StartFiles& files, Run& run) {
  sparse::Store& store = run.stage->store();
  const bool whole = !run.plan->layout.pipelined();
  if (files.resume) {
    const io::CheckpointReader reader(*files.resume);
    load(reader, store, true, whole);
    load_feedback(reader, store, run.ranks->replica(), run.plan->layout.grid.data);
    run.step = run.resumed_step = reader.meta().step;
    run.note(fmt::format("resumed from {} at step {}", reader.path().string(), run.step));
  } else if (!files.init.empty()) {
    load_weights(files.init, store, run.pruner->prunable(), whole);
    run.note(fmt::format("weights and masks from {}", files.init));
  } else {
    store.initialise(static_cast<uint64_t>(run.config().train.seed));
  }
}

/// Times storages left to "auto" at the density that pruning will reach. Collective.
void choose_auto_storages(Run& run) {
  const RunPlan& plan = *run.plan;
  if (!has_auto_storage(plan.config, run.stage->store())) {
    return;
  }
  const Span span(Track::compute, "time storages");
  auto groups = time_storages({.config = plan.config,
                               .store = run.stage->store(),
                               .prunable = run.pruner->prunable(),
                               .density = 1 - run.pruner->target(plan.config.train.steps),
                               .rows = plan.micro_batch() * plan.problem.rows},
                              run.backend->stream().threads(), run.stage->kernels());
  std::optional<size_t> budget;
  if (plan.fit.budget > 0 && !groups.empty()) {
    budget = plan.fit.budget - plan.fit.plan.needed() + planned_bytes(groups);
  }
  choose_storages(groups, budget);
  apply_storages(groups, run.stage->store(), run.ranks->data());
  if (!groups.empty()) {
    run.note("storages, by time of a forward and backward:\n" + storage_table(groups));
  }
}

/// Connects replicas and stages; loads the state of codecs and loss scale.
void connect(const StartFiles& files, std::shared_ptr<Shards> shards, Run& run) {
  const RunPlan& plan = *run.plan;
  const parallel::CarrierKind carrier = plan.stage_link.carrier;
  run.pipeline_reduction =
      std::make_unique<PipelineReduction>(plan.layout, *run.ranks, *run.stage, carrier);
  run.data_parallel = std::make_unique<DataParallel>(plan.config, *run.ranks, *run.stage,
                                                     std::move(shards), *run.pipeline_reduction);
  if (!run.data_parallel->route().empty()) {
    run.note(run.data_parallel->route());
  }
  if (files.resume) {
    on_first_rank_first(run.comm, [&] {
      const io::CheckpointReader reader(*files.resume);
      load_low_rank(reader, run.stage->store(), run.data_parallel->low_rank());
      const Progress saved = progress_of(reader);
      run.data_parallel->codecs().restore(saved.codec_choice);
      run.loss_scale.restore(saved.loss_scale);
    });
  }
  run.stage->set_gradient_scale(run.loss_scale.value(), run.loss_scale.skipped());
  run.pipeline = std::make_unique<Pipeline>(
      plan.config,
      Pipeline::Parts{.layout = plan.layout,
                      .ranks = *run.ranks,
                      .stage = *run.stage,
                      .source = *run.source,
                      .data_parallel = *run.data_parallel,
                      .reduction = *run.pipeline_reduction},
      Pipeline::Options{
          .samples = plan.micro_batch(), .first_sample = plan.first_sample, .carrier = carrier});
}

}  // namespace

void Run::count_totals() {
  const Sparsity mine = pruner->sparsity();
  std::array<double, 4> counts{static_cast<double>(stage->store().total_size()),
                               static_cast<double>(stage->store().total_kept()),
                               static_cast<double>(mine.prunable),
                               static_cast<double>(mine.prunable_kept)};
  parallel::all_reduce_small(ranks->pipeline(), counts, parallel::Combine::sum);
  auto whole = [&counts](size_t i) { return static_cast<int64_t>(counts.at(i)); };
  totals = {.size = whole(0),
            .kept = whole(1),
            .sparsity = {.prunable = whole(2), .prunable_kept = whole(3)}};
}

Run set_up(const io::Config& config, parallel::Communicator& comm, const TrainerOptions& options) {
  comm.set_timeout(config.parallel.timeout_s);
  compare_settings(config, comm);
  Run run{.comm = comm,
          .note = options.on_note ? options.on_note : [](const std::string&) {},
          .loss_scale = LossScale(config.train)};
  run.directory = std::make_unique<RunDirectory>(config.run.out, options.resume, comm);
  Opened opened;
  on_first_rank_first(comm, [&] { opened = open(config, options, run); });
  run.plan = std::make_unique<const RunPlan>(plan_run(config,
                                                      {.problem = run.source->problem(),
                                                       .layers = opened.layers,
                                                       .start = opened.start,
                                                       .backend = *run.backend,
                                                       .resume = opened.files.resume},
                                                      comm, run.note));
  run.backend->arena().set_advice(run.plan->advice);
  run.ranks = std::make_unique<Ranks>(comm, run.plan->layout.grid);
  const std::shared_ptr<Shards> shards = make_shards(run.config(), run.ranks->data());
  on_first_rank_first(comm, [&] {
    build_stage(std::exchange(opened.start, {}), shards, run);
    load_weights_and_state(opened.files, run);
    check_low_rank(run.config(), run.stage->store(), run.pruner->prunable());
  });
  choose_auto_storages(run);
  if (const std::string text = fp8_note(run.config(), run.stage->store()); !text.empty()) {
    run.note(text);
  }
  compare_ranks(run.stage->store(), run.ranks->data());
  run.count_totals();
  if (run.starts_pruned) {
    run.pruner->compare(run.ranks->data());
    run.note(fmt::format("pruned from the start: {} of {} parameters kept", run.totals.kept,
                         run.totals.size));
  }
  connect(opened.files, shards, run);
  run.directory->begin(run.config(), run.resumed_step);
  return run;
}

}  // namespace espalier::train
