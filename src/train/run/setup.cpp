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
#include "src/config/effect.h"
#include "src/config/schema.h"
#include "src/core/cpus.h"
#include "src/core/trace.h"
#include "src/train/exchange/agreement.h"
#include "src/train/memory/host_memory.h"
#include "src/train/memory/planner.h"
#include "src/train/memory/storage_choice.h"
#include "src/train/run/received_checkpoint.h"
#include "src/train/run/snapshot.h"

namespace espalier::train {
namespace {

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

/// The inputs of a plan, kept until the stage is built.
struct Opened {
  WeightSource files;
  std::optional<RunProgress> resumed{};  ///< the content of files.resume
  std::optional<TeacherFile> teacher{};  ///< of train.teacher
  model::Layers layers{};                ///< of the network, not bound
  InitialMasks start{};

  const TeacherFile* teacher_file() const { return teacher ? &*teacher : nullptr; }
  SavedRun before() const {
    return {.config = resumed->config,
            .manifest = resumed->manifest ? &*resumed->manifest : nullptr,
            .file = files.resume->string()};
  }
  /// The part of this run, if any, whose choices by timing hold on: restarts change no bit.
  std::optional<SavedRun> timed_before(const RunDirectory& directory) const {
    if (resumed) {
      return SavedRun{.config = resumed->config,
                      .manifest = resumed->manifest ? &*resumed->manifest : nullptr,
                      .file = "checkpoint"};
    }
    const auto& attempt = directory.earlier_attempt();
    return attempt ? std::optional(SavedRun{.config = attempt->config,
                                            .manifest = &attempt->manifest,
                                            .file = "attempt before, which saved no checkpoint"})
                   : std::nullopt;
  }
};

const kernels::Kernels& kernels_of(const io::Config& config, const TrainerOptions& options) {
  return options.kernels != nullptr ? *options.kernels : kernels::by_name(config.run.backend);
}

/// Opens data and device, and reads or makes the initial masks.
void open(const io::Config& config, const TrainerOptions& options, Opened& opened, Run& run) {
  std::optional<RunProgress> saved = saved_progress(config, opened.files);
  const io::Vocabulary characters = saved ? saved->characters : io::Vocabulary();
  run.model_texts = saved ? saved->model_texts : std::map<std::string, std::string>();
  if (opened.files.resume) {
    opened.resumed = std::move(saved);
    for (const std::string& note :
         check_resume(opened.before(), config, run.manifest, options.accepted)) {
      run.note(note);
    }
    if (!opened.files.init.empty()) {
      run.note(fmt::format("--init {} is not read: the run goes on from {}", opened.files.init,
                           opened.files.resume->string()));
    }
  }
  run.source = open_source(config, characters.size() > 0 ? &characters : nullptr);
  opened.teacher = open_teacher(config);
  if (opened.teacher) {
    check_teacher_fits_data(*opened.teacher, run.source->problem(), run.source->characters());
  }
  const kernels::Kernels* kernels = &kernels_of(config, options);
  if (config.run.operation_times) {
    run.operation_times = std::make_unique<kernels::OperationTimes>(*kernels);
    kernels = &run.operation_times->table();
  }
  run.backend = std::make_unique<kernels::Backend>(*kernels, static_cast<int>(run.manifest.threads),
                                                   run.comm.local_rank());
  Stream& stream = run.backend->stream();
  stream.allow_tf32(config.train.tf32);
  stream.set_deterministic(config.run.deterministic);
  opened.layers = model::make_layers(config.model, run.source->problem());
  check_sizes(opened.layers);
  const std::vector<sparse::ParameterSpec> network = model::parameters_of(opened.layers);
  config::check_patterns(config, network);
  opened.start = initial_masks(config, network, opened.files,
                               config.parallel.pipeline == 1 ? stream.threads() : 1);
  if (config.parallel.pipeline > 0) {  // fail before expensive work
    const auto stages = static_cast<int>(config.parallel.pipeline);
    share_of(config, parallel::make_grid(run.comm.size(), stages).data);
  }
}

/// For the user: keys that are set and do nothing here, and a vocabulary that the tokenizer's is
/// larger than.
void note_unused(const io::Config& config, bool starts_pruned, Run& run) {
  const parallel::Grid& grid = run.plan->layout.grid;
  const auto unused =
      config::keys_without_effect(config, {.on_device = run.backend->stream().arena().on_device(),
                                           .pruned = config.pruning.prunes() || starts_pruned,
                                           .replicas = grid.data,
                                           .stages = grid.pipeline});
  if (!unused.empty()) {
    run.note(fmt::format("without effect in this run: {}", fmt::join(unused, ", ")));
  }
  const int64_t noted = config.data.kind == "tokens" && config.model.vocabulary == 0
                            ? io::noted_vocabulary(config.data.train)
                            : 0;
  if (const int64_t found = run.source->problem().classes; noted > found) {
    run.note(
        fmt::format("the network has {} tokens, as many as the data; their tokenizer has {}, by "
                    "the note beside "
                    "{}: set model.vocabulary = {} for all of them",
                    found, noted, config.data.train.front(), noted));
  }
}

io::FileStamps stamps_of(const io::DataConfig& data) {
  std::vector<std::string> files = data.train;
  files.insert(files.end(), data.validation.begin(), data.validation.end());
  return io::FileStamps(files);
}

void build_stage(const Opened& opened, const std::shared_ptr<Shards>& shards, Run& run) {
  const RunPlan& plan = *run.plan;
  InitialMasks mine = masks_of_part(opened.start, plan.parameters);
  run.starts_pruned = mine.pruned;
  run.backend->arena().set_limit(plan.fit.arena_limit());
  run.stage = std::make_unique<Stage>(
      plan.config, plan.problem, run.backend->stream(), run.backend->kernels(),
      Stage::Options{.micro_batch = plan.micro_batch(),
                     .recompute = plan.fit.recompute(run.ranks->stage()),
                     .masks = std::move(mine.masks),
                     .sharding = shards,
                     .parts = plan.parts,
                     .teacher = opened.teacher_file()});
  StoreScope scope{.micro_batch = plan.micro_batch(), .replicas = plan.layout.grid.data};
  if (plan.layout.pipelined()) {
    scope.network = plan.specs;
    scope.numbers = plan.parameters;
    scope.stages = &run.ranks->pipeline();
  }
  run.pruner = std::make_unique<Pruner>(plan.config, run.stage->store(), scope);
  run.stage->set_gradient_hooks(run.pruner->gradient_hooks());
}

/// Loads or draws the weights, loads the teacher's, and the optimizer state of a checkpoint.
void load_weights_and_state(const Opened& opened, Run& run) {
  const WeightSource& files = opened.files;
  if (Teacher* teacher = run.stage->teacher(); teacher != nullptr) {
    load(io::CheckpointReader(opened.teacher->path), teacher->store(), {});
  }
  sparse::Store& store = run.stage->store();
  const bool whole = !run.plan->layout.pipelined();
  if (files.resume) {
    const io::CheckpointReader reader(*files.resume);
    load(reader, store, {.optimizer = true, .whole = whole, .masks = false});
    load_feedback(reader, store, run.ranks->replica(), run.plan->layout.grid.data);
    run.step = run.resumed_step = reader.meta().step;
    run.pruner->resume(run.step, reader);
    run.note(fmt::format("resumed from {} at step {}", reader.path().string(), run.step));
  } else if (!files.init.empty()) {
    load_weights(files.init, store, run.pruner->prunable(), whole);
    run.note(fmt::format("weights and masks from {}", files.init));
  } else {
    store.initialise(static_cast<uint64_t>(run.config().train.seed),
                     [&](const sparse::Parameter& parameter) {
                       return run.stage->parametrization().factors_of(parameter).initial_scale;
                     });
  }
}

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

/// Chosen storages may take the memory that the plan has for the copy of a checkpoint.
void limit_copies(const std::map<std::string, std::string>& storages, Run& run) {
  const Fit& fit = run.plan->fit;
  if (fit.budget > 0 && run.copies_checkpoints && !storages.empty() &&
      run.plan->with_storages(storages).needed() + fit.plan.checkpoint_copy > fit.budget) {
    run.copies_checkpoints = false;
    run.note(no_copy_note(run.plan->config, fit.plan.checkpoint_copy));
  }
}

/// Collective. Throws Failure if the plans of the ranks do not fit their machines.
void check_host_memory(const TrainerOptions& options, Run& run) {
  const RunPlan& plan = *run.plan;
  const MemoryPlan mine = plan.layout.pipelined() ? plan.with_storages({}) : plan.fit.plan;
  const bool on_device = run.backend->stream().arena().on_device();
  const std::string note = check_host(mine, on_device, run.comm, options.system_root);
  if (run.copies_checkpoints && !note.empty()) {
    run.copies_checkpoints = false;
    run.note(note);
  }
}

/// Collective. Ranks decide by copies_checkpoints when they wait for a save together.
void agree_on_copies(Run& run) {
  std::array<double, 1> without{run.copies_checkpoints ? 0.0 : 1.0};
  parallel::all_reduce_small(run.comm, without, parallel::Combine::max);
  run.copies_checkpoints = without[0] == 0;
}

/// Times storages left to "auto" at the density that pruning will reach, or takes those of the
/// checkpoint to resume. Returns them by parameter. Collective.
std::map<std::string, std::string> choose_auto_storages(const Opened& opened, Run& run) {
  const RunPlan& plan = *run.plan;
  if (!has_auto_storage(plan.config, run.stage->store())) {
    return {};
  }
  const StorageChoiceInput input{.config = plan.config,
                                 .store = run.stage->store(),
                                 .prunable = run.pruner->prunable(),
                                 .density = 1 - run.pruner->target(plan.config.train.steps),
                                 .samples = plan.micro_batch(),
                                 .rows = plan.micro_batch() * plan.problem.rows};
  if (const auto before = opened.timed_before(*run.directory);
      before && timings_are_valid(*before, plan.config, run.manifest, Timed::storages)) {
    run.manifest.storages = before->manifest->storages;
    set_storages(run.manifest.storages, run.stage->store());
    limit_copies(run.manifest.storages, run);
    run.note("storages as in the " + before->file);
    return run.manifest.storages;
  }
  const Span span(Track::compute, "time storages");
  auto groups = time_storages(input, run.backend->stream().threads(), run.stage->kernels());
  keep_common_timings(groups, run.ranks->data());
  const auto chosen = [&] { return storages_chosen(groups, run.stage->store()); };
  if (plan.fit.budget == 0) {
    choose_storages(groups, {});
    share_choice(groups, run.ranks->data());
  } else {
    const size_t spare = plan.fit.budget - plan.fit.plan.needed();
    choose_storages_that_fit(
        groups, planned_bytes(groups) + spare, plan.fit.budget,
        [&] { return plan.with_storages(chosen()).needed(); }, run.ranks->data());
  }
  set_storages(chosen(), run.stage->store());
  limit_copies(chosen(), run);
  if (!groups.empty()) {
    run.note("storages, by time of a forward and backward:\n" + storage_table(groups));
  }
  run.manifest.storages = of_all_stages(chosen(), run.ranks->pipeline());
  return chosen();
}

/// Plans the memory of this rank with its storages. RunPlan has that of the rank that needs most,
/// with the storages that plans assume for "auto".
void plan_this_rank(const std::map<std::string, std::string>& storages, Run& run) {
  const RunPlan& plan = *run.plan;
  const bool as_planned = storages.empty() && !plan.layout.pipelined() &&
                          run.stage->store().options().sharding == nullptr;
  run.planned = as_planned ? plan.fit.plan : plan.with_storages(storages);
}

/// Connects replicas and stages; loads the state of codecs and loss scale.
void connect(const Opened& opened, std::shared_ptr<Shards> shards, Run& run) {
  const RunPlan& plan = *run.plan;
  const parallel::CarrierKind carrier = plan.stage_link.carrier;
  run.pipeline_reduction =
      std::make_unique<PipelineReduction>(plan.layout, *run.ranks, *run.stage, carrier);
  run.data_parallel = std::make_unique<DataParallel>(plan.config, *run.ranks, *run.stage,
                                                     std::move(shards), *run.pipeline_reduction);
  if (!run.data_parallel->route().empty()) {
    run.note(run.data_parallel->route());
  }
  if (opened.resumed) {
    const bool timed = timings_are_valid(opened.before(), plan.config, run.manifest, Timed::codecs);
    on_first_rank_first(run.comm, [&] {
      run.data_parallel->codecs().restore(opened.resumed->codec_choice, timed);
      run.loss_scale.restore(opened.resumed->loss_scale);
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
  Run run{.comm = comm,
          .note = options.on_note ? options.on_note : [](const std::string&) {},
          .loss_scale = LossScale(config.train)};
  const int threads = threads_of(config, comm, options.system_root);
  on_first_rank_first(comm, [&] {
    run.manifest = manifest_of_program(options.git, kernels_of(config, options), comm);
    run.manifest.threads = threads;
  });
  compare_program(run.manifest, comm);
  for (const std::string& text :
       {binding_note(config, comm.local_size()), parallel::torch_launcher_note()}) {
    if (!text.empty()) {
      run.note(text);
    }
  }
  compare_settings(config, comm);
  run.directory = std::make_unique<RunDirectory>(config.run.out, options.resume, comm);
  const ReceivedCheckpoint received(run.directory->resume_file(), comm);
  if (received.copies() > 0) {
    run.note(fmt::format("{} rank(s) do not see {}: rank 0 sent them its content",
                         received.copies(), run.directory->resume_file()->string()));
  }
  Opened opened{.files = {.resume = received.file(), .init = options.init}};
  on_first_rank_first(comm, [&] {
    try {
      check_teacher_file(config);
      check_inputs_remain(config, opened.files.resume ? "" : options.init);
      run.data = stamps_of(config.data);
      add_inputs(config, run.manifest);
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
  compare_inputs(run.manifest, opened.files, comm);
  on_first_rank_first(comm, [&] { open(config, options, opened, run); });
  run.plan = std::make_unique<const RunPlan>(
      plan_run(config,
               {.problem = run.source->problem(),
                .layers = opened.layers,
                .start = opened.start,
                .backend = *run.backend,
                .teacher = opened.teacher_file(),
                .resumed = opened.resumed ? &*opened.resumed : nullptr},
               comm, run.note));
  note_unused(config, opened.start.pruned, run);
  run.backend->arena().set_advice(run.plan->advice);
  run.copies_checkpoints = run.plan->fit.copies_checkpoints;
  check_host_memory(options, run);
  run.ranks = std::make_unique<Ranks>(comm, run.plan->layout.grid);
  run.manifest.replicas = run.plan->layout.grid.data;
  run.manifest.stages = run.plan->layout.grid.pipeline;
  run.manifest.micro_batch = run.plan->micro_batch();
  const std::shared_ptr<Shards> shards = make_shards(run.config(), run.ranks->data());
  on_all_ranks(comm, [&] {
    build_stage(opened, shards, run);
    opened.start.masks = {};  // plans read the counts
    load_weights_and_state(opened, run);
  });
  if (opened.teacher) {
    run.note(note_of(*opened.teacher, config.train));
    if (const std::string text = token_note(*opened.teacher, run.manifest, config); !text.empty()) {
      run.note(text);
    }
  }
  plan_this_rank(choose_auto_storages(opened, run), run);
  agree_on_copies(run);
  if (const auto& parameters = run.stage->store().parameters();
      run.stage->parametrization().has_effect(parameters)) {
    run.note(fmt::format("factors of train.parametrization = \"{}\", at the present density:\n{}",
                         run.config().train.parametrization,
                         run.stage->parametrization().format_table(parameters)));
  }
  if (const std::string text = pruned_note(run.config(), run.stage->store()); !text.empty()) {
    run.note(text);
  }
  compare_ranks(run.stage->store(), run.ranks->data());
  run.count_totals();
  if (run.starts_pruned) {
    run.pruner->compare(run.ranks->data());
    run.note(fmt::format("pruned from the start: {} of {} parameters kept", run.totals.kept,
                         run.totals.size));
  }
  connect(opened, shards, run);
  {
    const parallel::Busy busy(comm);
    run.directory->begin(run.config(), run.manifest, run.resumed_step);
  }
  std::ranges::for_each(run.directory->take_notes(), run.note);
  return run;
}

}  // namespace espalier::train
