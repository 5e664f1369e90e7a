#include "src/train/run/setup.h"

#include <fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "io/data/token_format.h"
#include "io/files/folders.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/launcher.h"
#include "pruning/regrowth.h"
#include "src/config/dump.h"
#include "src/config/schema.h"
#include "src/core/cpus.h"
#include "src/core/trace.h"
#include "src/optim/schedule.h"
#include "src/train/checkpoint/received_checkpoint.h"
#include "src/train/checkpoint/snapshot.h"
#include "src/train/exchange/agreement.h"
#include "src/train/memory/host_memory.h"
#include "src/train/memory/planner.h"
#include "src/train/memory/storage_choice.h"

namespace espalier::train {
namespace {

using Note = std::function<void(const std::string&)>;  // messages for the user

void note_text(const Note& note, const std::string& text) {
  if (!text.empty()) {
    note(text);
  }
}

/// Collective. run.threads, or, if it is 0, the CPUs that a rank may use ÷ the ranks of its machine
/// that may use any of them, at most its part of the machine's quota of CPU time: the least of all
/// ranks, so that their plans are equal. `root`: the folder of proc and sys.
int threads_of(const io::Config& config, parallel::Communicator& comm,
               const std::filesystem::path& root) {
  const std::vector<int> mine = usable_cpus();
  std::vector<std::vector<int>> cpus;  // of each rank
  for (const auto& bytes : parallel::gather(comm, std::as_bytes(std::span(mine)))) {
    cpus.emplace_back(bytes.size() / sizeof(int));
    std::memcpy(cpus.back().data(), bytes.data(), bytes.size());
  }
  const std::vector<int>& node = comm.members().node;
  std::map<std::pair<int, int>, int> ranks_on;  // of a machine and its CPU
  for (size_t rank = 0; rank < cpus.size(); ++rank) {
    for (const int cpu : cpus[rank]) {
      ++ranks_on[{node[rank], cpu}];
    }
  }
  int least = std::numeric_limits<int>::max();
  for (size_t rank = 0; rank < cpus.size(); ++rank) {
    int sharing = 1;
    for (const int cpu : cpus[rank]) {
      sharing = std::max(sharing, ranks_on[{node[rank], cpu}]);
    }
    least = std::min(least, std::max(1, static_cast<int>(cpus[rank].size()) / sharing));
  }
  parallel::broadcast(comm, 0, std::as_writable_bytes(std::span(&least, 1)));
  const double quota = std::max(1.0, cpu_quota(root) / comm.local_size());
  std::array<double, 1> least_above{-std::min<double>(least, quota)};
  parallel::all_reduce_small(comm, least_above, parallel::Combine::max);
  least = static_cast<int>(-least_above[0]);
  return config.run.threads > 0 ? static_cast<int>(config.run.threads) : least;
}

/// For the user: the ranks of a machine may use fewer CPUs than it has. Empty: they may use as
/// many, or a batch system decides, or the number of threads is set.
std::string binding_note(const io::Config& config, int local_ranks) {
  const auto all = static_cast<int>(std::thread::hardware_concurrency());
  const int usable = usable_cpu_count();
  if (config.run.threads > 0 || usable * local_ranks >= all ||
      std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr || std::getenv("SLURM_JOB_ID") != nullptr) {
    return {};
  }
  return fmt::format(
      "rank 0 may use {} of {} CPUs: if mpirun binds it, --map-by slot:PE=CORES gives each rank "
      "its "
      "cores, and --bind-to none all of them",
      usable, all);
}

/// No input is a file that the run itself writes. A run that resumes does not read --init.
void check_inputs_remain(const io::Config& config, const std::string& init) {
  const auto remains = [&config](std::string_view name, const std::string& input) {
    if (!input.empty()) {
      check_not_of_run(name, input, config.run.out);
    }
  };
  remains("--init", init);
  remains("train.teacher", config.train.teacher);
  remains("pruning.file", config.pruning.file);
  for (const std::string& file : config.data.train) {
    remains("data.train", file);
  }
  for (const std::string& file : config.data.validation) {
    remains("data.validation", file);
  }
}

/// The checkpoint to start from, which must be of this model; empty: there is none.
std::optional<RunProgress> saved_progress(const io::Config& config, const WeightSource& files) {
  if (!files.resume && (files.init.empty() || !io::is_checkpoint(files.init))) {
    return {};
  }
  const std::filesystem::path file =
      files.resume ? *files.resume : std::filesystem::path(files.init);
  RunProgress saved = progress_of(io::CheckpointReader(file));
  check_same_model(config, saved.config, file.string());
  return saved;
}

/// For the user: how the positions of pruned parameters are held, and what bounds their first
/// steps; empty: none is pruned.
std::string pruned_note(const io::Config& config, const sparse::Store& store) {
  std::map<std::string_view, int> encodings;
  for (const sparse::Parameter& parameter : store.parameters()) {
    if (!parameter.full()) {
      ++encodings[parameter.index.encoding().name];
    }
  }
  std::vector<std::string> texts;
  for (const auto& [name, count] : encodings) {
    texts.push_back(fmt::format("{} ({})", name, count));
  }
  const int64_t warmup = config.optimizer.warmup_steps;
  return texts.empty()
             ? ""
             : fmt::format("pruned parameters: index {}; learning rate rises over {} steps, {}",
                           fmt::join(texts, ", "), warmup,
                           config.optimizer.clip > 0
                               ? fmt::format("gradient norm at most {:g}", config.optimizer.clip)
                               : "gradients are not clipped");
}

std::string note_of(const TeacherFile& teacher, const io::TrainConfig& train) {
  return fmt::format(
      "teacher {}: {}; loss = {:g} x that from the targets + {:g} x that from the teacher, at "
      "temperature {:g}",
      teacher.path.string(),
      model::network_of(teacher.config.model)
          .describe(teacher.config.model, teacher.problem.classes),
      1 - train.teacher_weight, train.teacher_weight, train.teacher_temperature);
}

/// Token files do not name their tokenizer: all that can be compared are the files. Empty: the
/// teacher learned from the files of this run, or its data have no tokens.
std::string token_note(const TeacherFile& teacher, const Manifest& manifest,
                       const io::Config& config) {
  if (config.data.kind != "tokens" || teacher.manifest.empty()) {
    return "";
  }
  const Manifest of_teacher = manifest_of(teacher.manifest, teacher.path.string());
  return of_teacher.train_data == manifest.train_data
             ? ""
             : fmt::format(
                   "train.teacher was trained on other token files ({} instead of {}): make sure "
                   "that one tokenizer made both",
                   of_teacher.train_data, manifest.train_data);
}

/// With those that set-up alone reads.
struct Files : RunFiles {
  std::unique_ptr<ReceivedCheckpoint> received{};
  WeightSource weights{};
};

const kernels::Kernels& kernels_of(const io::Config& config, const TrainerOptions& options) {
  return options.kernels != nullptr ? *options.kernels : kernels::by_name(config.run.backend);
}

io::FileStamps stamps_of(const io::DataConfig& data) {
  std::vector<std::string> files = data.train;
  files.insert(files.end(), data.validation.begin(), data.validation.end());
  return io::FileStamps(files);
}

/// Collective. Throws Failure unless all ranks have the same program, settings and files.
Files open_files(const io::Config& config, parallel::Communicator& comm,
                 const TrainerOptions& options, const Note& note) {
  Files files;
  const int threads = threads_of(config, comm, options.system_root);
  on_first_rank_first(comm, [&] {
    files.manifest = manifest_of_program(options.git, kernels_of(config, options), comm);
    files.manifest.threads = threads;
  });
  compare_program(files.manifest, comm);
  note_text(note, binding_note(config, comm.local_size()));
  note_text(note, parallel::torch_launcher_note());
  compare_settings(config, comm);
  files.directory = std::make_unique<RunDirectory>(config.run.out, options.resume, comm);
  files.received = std::make_unique<ReceivedCheckpoint>(files.directory->resume_file(), comm);
  if (const int copies = files.received->copies(); copies > 0) {
    note(fmt::format("{} rank(s) do not see {}: rank 0 sent them its content", copies,
                     files.directory->resume_file()->string()));
  }
  files.weights = {.resume = files.received->file(), .init = options.init};
  on_first_rank_first(comm, [&] {
    try {
      check_teacher_file(config);
      check_inputs_remain(config, files.weights.resume ? "" : options.init);
      files.data = stamps_of(config.data);
      add_inputs(config, files.manifest);
    } catch (const Failure& failure) {
      if (comm.rank() == 0) {
        throw;
      }
      throw Failure(
          fmt::format("on machine {}, unlike that of rank 0: {}; copy the files to all machines, "
                      "or use a folder that they share",
                      io::host_name(), failure.what()),
          failure.retryable());
    }
  });
  compare_inputs(files.manifest, files.weights, comm);
  return files;
}

/// With those that set-up alone reads.
struct Inputs : RunInputs {
  std::optional<RunProgress> resumed{};  ///< the content of the checkpoint to resume from
  std::optional<TeacherFile> teacher{};  ///< of train.teacher
  model::Layers layers{};                ///< of the network, not bound
  InitialMasks start{};

  const TeacherFile* teacher_file() const { return teacher ? &*teacher : nullptr; }
};

SavedRun saved_run(const RunProgress& resumed, std::string file) {
  return {.config = resumed.config,
          .manifest = resumed.manifest ? &*resumed.manifest : nullptr,
          .file = std::move(file)};
}

/// With a number for optimizer.lr = "auto": that of the run that it resumes, or a choice.
io::Config with_rate(const io::Config& given, const WeightSource& files,
                     const std::optional<RunProgress>& saved, const Note& note) {
  if (given.optimizer.lr != io::kAutomatic) {
    return given;
  }
  io::Config config = given;
  if (files.resume && saved->config.optimizer.lr != io::kAutomatic) {
    config.optimizer.lr = saved->config.optimizer.lr;
    if (given.optimizer.min_lr == io::OptimizerConfig().min_lr) {
      config.optimizer.min_lr = saved->config.optimizer.min_lr;
    }
    config.train.base_width =
        given.train.base_width > 0 ? given.train.base_width : saved->config.train.base_width;
  } else {
    config = optim::with_learning_rate(given, !files.init.empty());
  }
  const int64_t width = config.train.base_width;
  note(fmt::format(
      "optimizer.lr = \"auto\": {:g}{}{}", config.optimizer.lr,
      width > 0 ? fmt::format(", that of a network {} wide", width) : "",
      files.resume || files.init.empty() ? "" : ", for weights that are trained already"));
  return config;
}

/// Opens data and device, and reads or makes the initial masks.
Inputs open_inputs(const io::Config& config, const TrainerOptions& options, const Files& files,
                   std::optional<RunProgress> saved, parallel::Communicator& comm,
                   const Note& note) {
  Inputs inputs;
  const io::Vocabulary characters = saved ? saved->characters : io::Vocabulary();
  inputs.model_texts = saved ? saved->model_texts : std::map<std::string, std::string>();
  if (files.weights.resume) {
    inputs.resumed = std::move(saved);
    for (const std::string& text :
         check_resume(saved_run(*inputs.resumed, files.weights.resume->string()), config,
                      files.manifest, options.accepted)) {
      note(text);
    }
    if (!files.weights.init.empty()) {
      note(fmt::format("--init {} is not read: the run goes on from {}", files.weights.init,
                       files.weights.resume->string()));
    }
  }
  inputs.source = open_source(config, characters.size() > 0 ? &characters : nullptr);
  inputs.teacher = open_teacher(config);
  if (inputs.teacher) {
    check_teacher_fits_data(*inputs.teacher, inputs.source->problem(), inputs.source->characters());
  }
  const kernels::Kernels* kernels = &kernels_of(config, options);
  if (config.run.operation_times) {
    inputs.operation_times = std::make_unique<kernels::OperationTimes>(*kernels);
    kernels = &inputs.operation_times->table();
  }
  inputs.backend = std::make_unique<kernels::Backend>(
      *kernels, static_cast<int>(files.manifest.threads), comm.local_rank());
  Stream& stream = inputs.backend->stream();
  stream.allow_tf32(config.train.tf32);
  stream.set_deterministic(config.run.deterministic);
  inputs.layers = model::make_layers(config.model, inputs.source->problem());
  check_sizes(inputs.layers);
  const std::vector<sparse::ParameterSpec> network = model::parameters_of(inputs.layers);
  config::check_patterns(config, network);
  inputs.start = initial_masks(config, network, files.weights,
                               config.parallel.pipeline == 1 ? stream.threads() : 1);
  if (config.parallel.pipeline > 0) {  // fail before expensive work
    const auto stages = static_cast<int>(config.parallel.pipeline);
    share_of(config, parallel::make_grid(comm.size(), stages).data);
  }
  return inputs;
}

/// For the user: keys that are set and do nothing here, and a vocabulary that the tokenizer's is
/// larger than.
void note_unused(const io::Config& config, const Inputs& inputs, const parallel::Grid& grid,
                 const Note& note) {
  const auto unused = config::keys_without_effect(
      config, {.on_device = inputs.backend->stream().arena().on_device(),
               .pruned = config.pruning.prunes() || inputs.start.pruned,
               .replicas = grid.data,
               .stages = grid.pipeline});
  if (!unused.empty()) {
    note(fmt::format("without effect in this run: {}", fmt::join(unused, ", ")));
  }
  const int64_t noted = config.data.kind == "tokens" && config.model.vocabulary == 0
                            ? io::noted_vocabulary(config.data.train)
                            : 0;
  if (const int64_t found = inputs.source->problem().classes; noted > found) {
    note(
        fmt::format("the network has {} tokens, as many as the data; their tokenizer has {}, by "
                    "the note beside "
                    "{}: set model.vocabulary = {} for all of them",
                    found, noted, config.data.train.front(), noted));
  }
}

/// Loads or draws the weights, loads the teacher's, and the optimizer state of a checkpoint.
/// Returns the step of the checkpoint to resume from; -1: none.
int64_t load_weights_and_state(const WeightSource& files, const RunPlace& place, Stage& stage,
                               Pruner& pruner, const Note& note) {
  sparse::Store& store = stage.store();
  const RunPlan& plan = *place.plan;
  const bool whole = !plan.layout.pipelined();
  if (files.resume) {
    const io::CheckpointReader reader(*files.resume);
    load(reader, store, {.optimizer = true, .whole = whole, .masks = false});
    load_feedback(reader, store, place.ranks->replica(), plan.layout.grid.data);
    const int64_t step = reader.meta().step;
    pruner.resume(step, reader);
    note(fmt::format("resumed from {} at step {}", reader.path().string(), step));
    return step;
  }
  if (!files.init.empty()) {
    load_weights(files.init, store, pruner.prunable(), whole);
    note(fmt::format("weights and masks from {}", files.init));
  } else {
    store.initialise(static_cast<uint64_t>(plan.config.train.seed),
                     [&](const sparse::Parameter& parameter) {
                       return stage.parametrization().factors_of(parameter).initial_scale;
                     });
  }
  return -1;
}

/// Frees the initial masks.
RunModel build_model(Inputs& inputs, const WeightSource& files, const RunPlace& place,
                     const std::shared_ptr<Shards>& shards, const Note& note) {
  const RunPlan& plan = *place.plan;
  InitialMasks mine = masks_of_part(inputs.start, plan.parameters);
  const bool starts_pruned = mine.pruned;
  inputs.backend->arena().set_limit(plan.fit.arena_limit());
  auto stage = std::make_unique<Stage>(
      plan.config, plan.problem, inputs.backend->stream(), inputs.backend->kernels(),
      Stage::Options{.micro_batch = plan.micro_batch(),
                     .recompute = plan.fit.recompute(place.ranks->stage()),
                     .masks = std::move(mine.masks),
                     .sharding = shards,
                     .parts = plan.parts,
                     .teacher = inputs.teacher_file()});
  StoreScope scope{.micro_batch = plan.micro_batch(), .replicas = plan.layout.grid.data};
  if (plan.layout.pipelined()) {
    scope.network = plan.specs;
    scope.numbers = plan.parameters;
    scope.stages = &place.ranks->pipeline();
  }
  auto pruner = std::make_unique<Pruner>(plan.config, stage->store(), scope);
  stage->set_gradient_hooks(pruner->gradient_hooks());
  inputs.start.masks = {};  // plans read the counts
  if (Teacher* teacher = stage->teacher(); teacher != nullptr) {
    load(io::CheckpointReader(inputs.teacher->path), teacher->store(), {});
  }
  const int64_t step = load_weights_and_state(files, place, *stage, *pruner, note);
  return {.stage = std::move(stage),
          .pruner = std::move(pruner),
          .step = std::max<int64_t>(step, 0),
          .resumed_step = step,
          .starts_pruned = starts_pruned};
}

Totals count(const RunModel& model, parallel::Communicator& pipeline) {
  const Sparsity mine = model.pruner->sparsity();
  const sparse::Store& store = model.stage->store();
  std::array<double, 4> counts{
      static_cast<double>(store.total_size()), static_cast<double>(store.total_kept()),
      static_cast<double>(mine.prunable), static_cast<double>(mine.prunable_kept)};
  parallel::all_reduce_small(pipeline, counts, parallel::Combine::sum);
  auto whole = [&counts](size_t i) { return static_cast<int64_t>(counts.at(i)); };
  return {.size = whole(0),
          .kept = whole(1),
          .sparsity = {.prunable = whole(2), .prunable_kept = whole(3)}};
}

/// Storages that were left to "auto", by parameter.
struct Storages {
  std::map<std::string, std::string> mine{};  ///< of this rank
  std::map<std::string, std::string> all{};   ///< on the first rank of a pipeline: of all stages
  std::string note{};
};

/// Collective over the pipeline. All stages' storages on its first rank.
std::map<std::string, std::string> of_all_stages(const std::map<std::string, std::string>& mine,
                                                 parallel::Communicator& pipeline) {
  const std::vector<uint8_t> packed = nlohmann::json::to_cbor(mine);
  std::map<std::string, std::string> all;
  for (const auto& one : parallel::gather(pipeline, std::as_bytes(std::span(packed)))) {
    const auto* begin = reinterpret_cast<const uint8_t*>(one.data());
    all.merge(nlohmann::json::from_cbor(begin, begin + one.size())
                  .get<std::map<std::string, std::string>>());
  }
  return all;
}

/// The part of this run, if any, whose choices by timing hold on: restarts change no bit.
std::optional<SavedRun> timed_before(const Files& files, const Inputs& inputs) {
  if (inputs.resumed) {
    return saved_run(*inputs.resumed, "checkpoint");
  }
  const auto& attempt = files.directory->earlier_attempt();
  return attempt ? std::optional(SavedRun{.config = attempt->config,
                                          .manifest = &attempt->manifest,
                                          .file = "attempt before, which saved no checkpoint"})
                 : std::nullopt;
}

/// Times storages left to "auto" at the density that pruning will reach, or takes those of the
/// checkpoint to resume, and sets them. Collective.
Storages choose_auto_storages(const Files& files, const Inputs& inputs, const RunPlace& place,
                              const RunModel& model) {
  const RunPlan& plan = *place.plan;
  sparse::Store& store = model.stage->store();
  if (!has_auto_storage(plan.config, store)) {
    return {};
  }
  const StorageChoiceInput input{
      .config = plan.config,
      .store = store,
      .prunable = model.pruner->prunable(),
      .density = 1 - model.pruner->target(pruning::last_step_before_regrowth(
                         plan.config.pruning, plan.config.train.steps)),
      .samples = plan.micro_batch(),
      .rows = plan.micro_batch() * plan.problem.rows};
  if (const auto before = timed_before(files, inputs);
      before && timings_are_valid(*before, plan.config, files.manifest, Timed::storages)) {
    const auto& storages = before->manifest->storages;
    set_storages(storages, store);
    return {.mine = storages, .all = storages, .note = "storages as in the " + before->file};
  }
  const Span span(Track::compute, "time storages");
  parallel::Communicator& replicas = place.ranks->data();
  auto groups = time_storages(input, inputs.backend->stream().threads(), model.stage->kernels());
  keep_common_timings(groups, replicas);
  const auto chosen = [&] { return storages_chosen(groups, store); };
  if (plan.fit.budget == 0) {
    choose_storages(groups, {});
    share_choice(groups, replicas);
  } else {
    const size_t spare = plan.fit.budget - plan.fit.plan.needed();
    choose_storages_that_fit(
        groups, planned_bytes(groups) + spare, plan.fit.budget,
        [&] { return plan.with_storages(chosen()).needed(); }, replicas);
  }
  set_storages(chosen(), store);
  return {.mine = chosen(),
          .all = of_all_stages(chosen(), place.ranks->pipeline()),
          .note = groups.empty()
                      ? ""
                      : "storages, by time of a forward and backward:\n" + storage_table(groups)};
}

/// Connects replicas and stages; loads the state of codecs and loss scale.
RunLinks connect(const Files& files, const Inputs& inputs, const RunPlace& place, Stage& stage,
                 std::shared_ptr<Shards> shards, const Note& note) {
  const RunPlan& plan = *place.plan;
  Ranks& ranks = *place.ranks;
  const parallel::CarrierKind carrier = plan.stage_link.carrier;
  auto reduction = std::make_unique<PipelineReduction>(plan.layout, ranks, stage, carrier);
  auto data_parallel =
      std::make_unique<DataParallel>(plan.config, ranks, stage, std::move(shards), *reduction);
  note_text(note, data_parallel->route());
  LossScale loss_scale(plan.config.train);
  if (inputs.resumed) {
    const bool timed = timings_are_valid(saved_run(*inputs.resumed, files.weights.resume->string()),
                                         plan.config, files.manifest, Timed::codecs);
    on_first_rank_first(ranks.world(), [&] {
      data_parallel->codecs().restore(inputs.resumed->codec_choice, timed);
      loss_scale.restore(inputs.resumed->loss_scale);
    });
  }
  stage.set_gradient_scale(loss_scale.value(), loss_scale.skipped());
  auto pipeline = std::make_unique<Pipeline>(
      plan.config,
      Pipeline::Parts{.layout = plan.layout,
                      .ranks = ranks,
                      .stage = stage,
                      .source = *inputs.source,
                      .data_parallel = *data_parallel},
      Pipeline::Options{
          .samples = plan.micro_batch(), .first_sample = plan.first_sample, .carrier = carrier});
  return {.pipeline_reduction = std::move(reduction),
          .data_parallel = std::move(data_parallel),
          .pipeline = std::move(pipeline),
          .loss_scale = loss_scale};
}

}  // namespace

void Run::check_data() {
  const std::string changed = data.changed();
  if (changed.empty()) {
    return;
  }
  const io::DataConfig& files = config().data;
  io::FileStamps now = stamps_of(files);
  const auto is_same = [&] {
    try {
      return io::fingerprint(files.train) == manifest.train_data &&
             io::fingerprint(files.validation) == manifest.validation_data;
    } catch (const Failure&) {  // empty, or gone in the meantime
      return false;
    }
  };
  check(is_same(),
        "data file {} was changed while the run reads it; the state since the last checkpoint was "
        "not saved; restore the file, then --resume auto",
        changed);
  data = std::move(now);
}

void Run::count_totals() { totals = count(*this, ranks->pipeline()); }

Run set_up(const io::Config& given, parallel::Communicator& comm, const TrainerOptions& options) {
  comm.set_timeout(given.parallel.timeout_s);
  const Note note = options.on_note ? options.on_note : [](const std::string&) {};
  Files files = open_files(given, comm, options, note);
  Manifest& manifest = files.manifest;
  Inputs inputs;
  io::Config config;
  on_first_rank_first(comm, [&] {
    std::optional<RunProgress> saved = saved_progress(given, files.weights);
    config = with_rate(given, files.weights, saved, note);
    inputs = open_inputs(config, options, files, std::move(saved), comm, note);
  });

  auto whole_plan = std::make_unique<const RunPlan>(
      plan_run(config,
               {.problem = inputs.source->problem(),
                .layers = inputs.layers,
                .start = inputs.start,
                .backend = *inputs.backend,
                .teacher = inputs.teacher_file(),
                .resumed = inputs.resumed ? &*inputs.resumed : nullptr,
                .system_root = options.system_root},
               comm, note));
  const RunPlan& plan = *whole_plan;
  note_unused(config, inputs, plan.layout.grid, note);
  inputs.backend->arena().set_advice(plan.advice);
  bool copies = plan.fit.copies_checkpoints;
  const auto give_up_copies = [&](const std::string& why) {
    if (copies && !why.empty()) {
      copies = false;
      note(why);
    }
  };
  give_up_copies(check_host(plan.layout.pipelined() ? plan.with_storages({}) : plan.fit.plan,
                            inputs.backend->arena().on_device(), comm, options.system_root));
  RunPlace place{.plan = std::move(whole_plan),
                 .ranks = std::make_unique<Ranks>(comm, plan.layout.grid)};
  parallel::Communicator& replicas = place.ranks->data();
  manifest.replicas = plan.layout.grid.data;
  manifest.stages = plan.layout.grid.pipeline;
  manifest.micro_batch = plan.micro_batch();

  const std::shared_ptr<Shards> shards = make_shards(plan.config, replicas);
  RunModel model;
  on_all_ranks(comm, [&] { model = build_model(inputs, files.weights, place, shards, note); });
  const sparse::Store& store = model.stage->store();
  if (inputs.teacher) {
    note(note_of(*inputs.teacher, config.train));
    note_text(note, token_note(*inputs.teacher, manifest, config));
  }
  const Storages storages = choose_auto_storages(files, inputs, place, model);
  manifest.storages = storages.all;
  if (const size_t copy = plan.fit.plan.checkpoint_copy;
      plan.fit.budget > 0 && !storages.mine.empty() &&
      plan.with_storages(storages.mine).needed() + copy > plan.fit.budget) {
    give_up_copies(no_copy_note(plan.config, copy));  // storages take the memory of the copy
  }
  note_text(note, storages.note);
  // The plan is that of the rank that needs most, with the storages that it assumes for "auto".
  const bool as_planned = storages.mine.empty() && !plan.layout.pipelined() && shards == nullptr;
  MemoryPlan planned = as_planned ? plan.fit.plan : plan.with_storages(storages.mine);
  std::array<double, 1> without{copies ? 0.0 : 1.0};  // ranks wait for the same saves
  parallel::all_reduce_small(comm, without, parallel::Combine::max);

  if (const auto& parametrization = model.stage->parametrization();
      parametrization.has_effect(store.parameters())) {
    note(fmt::format("factors of train.parametrization = \"{}\", at the present density:\n{}",
                     plan.config.train.parametrization,
                     parametrization.format_table(store.parameters())));
  }
  note_text(note, pruned_note(plan.config, store));
  compare_ranks(store, replicas);
  const Totals totals = count(model, place.ranks->pipeline());
  if (model.starts_pruned) {
    model.pruner->compare(replicas);
    note(fmt::format("pruned from the start: {} of {} parameters kept", totals.kept, totals.size));
  }

  RunLinks links = connect(files, inputs, place, *model.stage, shards, note);
  {
    const parallel::Busy busy(comm);
    files.directory->begin(plan.config, manifest, model.resumed_step);
  }
  std::ranges::for_each(files.directory->take_notes(), note);
  return {std::move(files),
          std::move(inputs),
          std::move(place),
          std::move(model),
          std::move(links),
          comm,
          note,
          std::move(planned),
          without[0] == 0,
          totals};
}

}  // namespace espalier::train
