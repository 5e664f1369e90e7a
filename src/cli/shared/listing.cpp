#include "src/cli/shared/listing.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "io/data/image_format.h"
#include "parallel/pipeline/schedule/simulate.h"
#include "pruning/registry.h"
#include "pruning/regrowth.h"
#include "src/cli/shared/console.h"
#include "src/config/dump.h"
#include "src/config/schema.h"
#include "src/train/masks/pruner.h"
#include "src/train/memory/budget.h"
#include "src/train/memory/planner.h"
#include "src/train/run/pipeline.h"

namespace espalier::cli {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

AssumedProblem assume_problem(const io::Config& config, const train::TeacherFile* teacher) {
  if (teacher != nullptr) {
    model::ProblemShape shape = teacher->problem;
    if (config.data.kind != "images") {
      shape.features = shape.rows = config.model.context;
    }
    return {shape, ""};
  }
  if (config.data.kind == "images") {
    const io::ImageFormat& format = io::image_format_of(config.data);
    const auto stated = model::network_of(config.model).image;
    const Shape image = stated != nullptr ? stated(config.model) : Shape(format.usual_extents);
    const int64_t classes = config.model.classes > 0 ? config.model.classes : format.usual_classes;
    return {
        {.classes = classes,
         .features = image.count(),
         .rows = 1,
         .input_dtype = DType::fp32,
         .image = image},
        fmt::format("images of {} and {} classes: the data were not read", image.text(), classes)};
  }
  constexpr int64_t kByteTokens = 256;
  constexpr int64_t kGpt2Tokens = 50257;
  AssumedProblem problem{{.classes = kByteTokens,
                          .features = config.model.context,
                          .rows = config.model.context,
                          .input_dtype = DType::int32},
                         ""};
  if (config.data.kind == "bytes") {
    return problem;
  }
  if (config.model.vocabulary > 0) {
    problem.shape.classes = config.model.vocabulary;
  } else if (config.data.kind == "chars") {
    problem.note =
        "a vocabulary of 256, the most that kind \"chars\" can have: the data were not read";
  } else {
    problem.shape.classes = kGpt2Tokens;
    problem.note =
        "GPT-2's vocabulary of 50257: model.vocabulary is not set, the data were not read";
  }
  return problem;
}

namespace {

/// Bytes by category. Omits communication if the number of ranks is unknown.
Json json_of(const train::MemoryByKind& bytes, int64_t parameters) {
  Json memory;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    if (static_cast<Memory>(kind) != Memory::communication) {
      memory[std::string(name_of(static_cast<Memory>(kind)))] = bytes.at(kind);
    }
  }
  const size_t state = train::model_state_of(bytes);
  memory["all"] = train::sum_of(bytes);
  memory["model_state"] = state;
  memory["model_state_bytes_per_parameter"] =
      static_cast<double>(state) / static_cast<double>(parameters);
  return memory;
}

Json json_of(const sparse::StateParts& parts) {
  Json found{{"value", parts.value},       {"dense copies", parts.copies},
             {"gradient", parts.gradient}, {"low halves", parts.low},
             {"moments", parts.moments},   {"scales", parts.scales},
             {"index", parts.index}};
  if (parts.master > 0) {
    found["master copies"] = parts.master;
  }
  if (parts.pruning > 0) {
    found["arrays of the pruning method"] = parts.pruning;
  }
  return found;
}

/// The fit under the budget. If nothing fits: the fit without budget, and the reason in `error`.
struct Fitting {
  train::Fit fit;
  std::string error;
};

Fitting fit_or_tell(io::Config config, const train::RunShape& run) {
  try {
    return {.fit = train::fit_memory(config, run), .error = {}};
  } catch (const Failure& failure) {
    if (config.train.memory_budget.empty()) {
      throw;
    }
    config.train.memory_budget.clear();
    return {.fit = train::fit_memory(config, run), .error = failure.what()};
  }
}

int64_t count_prunable(const std::vector<sparse::ParameterSpec>& specs,
                       const io::PruningConfig& pruning) {
  const std::vector<bool> prunable = train::prunable_of(specs, pruning);
  int64_t count = 0;
  for (size_t p = 0; p < prunable.size(); ++p) {
    count += prunable[p] ? specs[p].shape.count() : 0;
  }
  return count;
}

/// Of masks that keep so many elements of each parameter.
double sparsity_of(const std::vector<int64_t>& kept,
                   const std::vector<sparse::ParameterSpec>& specs,
                   const io::PruningConfig& pruning) {
  const std::vector<bool> prunable = train::prunable_of(specs, pruning);
  double ones = 0;
  for (size_t p = 0; p < prunable.size(); ++p) {
    ones += prunable[p] ? static_cast<double>(kept[p]) : 0;
  }
  return 1 - ones / static_cast<double>(std::max<int64_t>(count_prunable(specs, pruning), 1));
}

/// Lines of "name  value", names padded.
std::string aligned(const Rows& rows) {
  size_t width = 0;
  for (const auto& row : rows) {
    width = std::max(width, row[0].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("{:<{}}  {}\n", row[0], width, row[1]);
  }
  return text;
}

/// Table of bytes by category: dense, pruned, per parameter of the last state, peak.
std::string memory_text(const Json& found) {
  const bool prunes = found.contains("pruned");
  Rows rows{{"", "dense"}};
  if (prunes) {
    rows.front().push_back(fmt::format("at {}", percent(found["sparsity"].get<double>())));
  }
  rows.front().insert(rows.front().end(), {"a parameter", "peak"});
  const Json& last = prunes ? found["pruned"] : found["dense"];
  const auto parameters = found["parameters"].get<double>();
  for (const auto& [key, dense] : found["dense"].items()) {
    if (key == "model_state_bytes_per_parameter") {
      continue;  // has a column of its own
    }
    auto& row = rows.emplace_back();
    row = {key == "model_state" ? "model state" : key, bytes_text(dense.get<double>())};
    if (prunes) {
      row.push_back(bytes_text(last[key].get<double>()));
    }
    row.push_back(fmt::format("{:.3f} B", last[key].get<double>() / parameters));
    row.push_back(bytes_text(found["peak"][key].get<double>()));
  }
  return table(rows);
}

/// The model state after the last change of masks.
std::string parts_text(const Json& found) {
  Rows rows{{"model state by part", "bytes", "a parameter"}};
  for (const auto& [part, bytes] : found["parts"].items()) {
    rows.push_back(
        {part, bytes_text(bytes.get<double>()),
         fmt::format("{:.3f} B", bytes.get<double>() / found["parameters"].get<double>())});
  }
  return table(rows);
}

/// A line per stage: the rank that holds it, of the first replica.
std::string grid_text(const Json& grid) {
  const std::string head =
      fmt::format("over {} ranks", grid["ranks"].get<int>()) +
      (grid.contains("stages")
           ? fmt::format(" = {} stage{} x {} replica{}", grid["stages"].size(),
                         grid["stages"].size() == 1 ? "" : "s", grid["replicas"].get<int>(),
                         grid["replicas"].get<int>() == 1 ? "" : "s")
           : "");
  if (grid.contains("error")) {
    return fmt::format("{}: {}\n", head, grid["error"].get<std::string>());
  }
  Rows rows{{"stage", "layers", "kept", "model state", "activations", "peak", "idle"}};
  size_t number = 0;
  for (const Json& stage : grid["stages"]) {
    std::vector<std::string> layers;
    for (const Json& part : stage["layers"]) {
      layers.push_back(fmt::format("{}-{}", part[0].get<int64_t>(), part[1].get<int64_t>()));
    }
    rows.push_back(
        {fmt::format("{}", number++), fmt::format("{}", fmt::join(layers, ", ")),
         grouped(stage["kept_parameters"].get<int64_t>()),
         bytes_text(stage["peak"]["model_state"].get<double>()),
         bytes_text(stage["peak"]["activation"].get<double>()),
         bytes_text(stage["process"].get<double>()),
         stage.contains("idle_share") ? percent(stage["idle_share"].get<double>()) : ""});
  }
  std::string text = fmt::format(
      "\n{}, schedule {}, {} micro-batches of {}, recompute {}; idle: the share of a step in which "
      "a "
      "stage waits, by counted operations\n{}the one that needs most takes about {} at its peak\n",
      head, grid["schedule"].get<std::string>(), grid["micro_batches"].get<int64_t>(),
      grid["micro_batch"].get<int64_t>(), grid["recompute"].get<std::string>(), table(rows),
      bytes_text(grid["process"].get<double>()));
  for (const Json& note : grid["notes"]) {
    text += note.get<std::string>() + "\n";
  }
  return text;
}

std::string listing_text(const Json& found, const io::Config& config) {
  auto number = [&](const char* key) { return found[key].get<int64_t>(); };
  auto grouped_of = [&](const char* key) { return grouped(number(key)); };
  Rows head{{"network", found["network"].get<std::string>()},
            {"parameters", grouped_of("parameters")},
            {"prunable", grouped_of("prunable_parameters")}};
  if (found.contains("pruned")) {
    head.push_back({fmt::format("kept at {}", percent(found["sparsity"].get<double>())),
                    grouped_of("kept_parameters")});
  }
  if (found.contains("teacher")) {
    head.push_back({"teacher", found["teacher"].get<std::string>()});
  }
  head.push_back(
      {"flops", fmt::format("{:.3g} a step of {} sequences", found["flops_per_step"].get<double>(),
                            config.train.global_batch)});
  std::string text = aligned(head);
  if (found.contains("assumed")) {
    text += fmt::format("assumed: {}\n", found["assumed"].get<std::string>());
  }
  if (found.contains("without_effect")) {
    const auto keys = found["without_effect"].get<std::vector<std::string>>();
    text += fmt::format("without effect in this run: {}\n", fmt::join(keys, ", "));
  }
  text +=
      fmt::format("\nmemory of {}, {}, micro-batch of {}, recompute {}\n",
                  found.contains("grid") ? "one rank with all layers" : "a rank",
                  config.train.dtype, number("micro_batch"), found["recompute"].get<std::string>());
  text += memory_text(found) + "\n" + parts_text(found);
  const bool device = found.contains("backend");
  text += fmt::format(
      "{} at its peak: about {} ({:.2f} GiB)\n", device ? "memory of the device" : "the process",
      bytes_text(found["process"].get<double>()), found["process"].get<double>() * 0x1p-30);
  if (device) {
    text += fmt::format("pinned memory of the host: {}, of it optimizer state {}\n",
                        bytes_text(found["pinned"]["all"].get<double>()),
                        bytes_text(found["pinned"]["model_state"].get<double>()));
  }
  if (found.contains("checkpoint_copy")) {
    const Json& copy = found["checkpoint_copy"];
    text += fmt::format("{}copy of a checkpoint, while it is written: {}{}\n",
                        device ? "memory of the host, " : "in addition, ",
                        bytes_text(copy["bytes"].get<double>()),
                        copy["fits"].get<bool>() ? "" : "; no room: steps wait instead");
  }
  if (found.contains("grid")) {
    text += grid_text(found["grid"]);
  }
  if (found.contains("note")) {
    text += found["note"].get<std::string>() + "\n";
  }
  return text;
}

std::string teacher_text(size_t bytes) {
  return bytes == 0 ? ""
                    : fmt::format(" (the teacher's {})", bytes_text(static_cast<double>(bytes)));
}

}  // namespace

std::string describe_run(const io::Config& config, train::Trainer& trainer,
                         const parallel::Communicator& comm) {
  train::Stage& stage = trainer.stage();
  const train::Totals& totals = trainer.totals();
  const int64_t share = config.train.global_batch / trainer.layout().grid.data;
  const train::PassChoice choice = trainer.fit().choice;
  const int64_t micro = choice.micro_batch;
  return fmt::format(
             "{}\n{:.2f} M parameters, {:.2f} M of them prunable; {} kept now\n"
             "{} rank{} x {} thread{}, {}, {}; {} {} a step = {} x {} micro-batch{} of {}\n"
             "memory of a rank: model state {}, activations {} (recompute {}), planned peak {}",
             model::network_of(config.model).describe(config.model, stage.problem().classes),
             1e-6 * static_cast<double>(totals.size),
             1e-6 * static_cast<double>(totals.sparsity.prunable),
             percent(static_cast<double>(totals.kept) / static_cast<double>(totals.size)),
             comm.size(), comm.size() == 1 ? "" : "s", stage.stream().threads(),
             stage.stream().threads() == 1 ? "" : "s", stage.kernels().name, config.train.dtype,
             config.train.global_batch,
             stage.problem().classifies_images() ? "images" : "sequences",
             trainer.layout().grid.data, share / micro, share == micro ? "" : "es", micro,
             bytes_text(static_cast<double>(trainer.arena().model_state_bytes() +
                                            trainer.arena().offloaded_bytes())) +
                 teacher_text(trainer.fit().plan.teacher),
             bytes_text(static_cast<double>(trainer.arena().use(Memory::activation).now)),
             name_of(choice.recompute),
             bytes_text(static_cast<double>(train::sum_of(trainer.planned().peak)))) +
         (trainer.layout().stages() > 1
              ? "\n" + train::describe(trainer.layout(), comm.members().node)
              : "");
}

namespace {

/// Share of a step in which each stage's rank waits; empty: the schedule has no steps.
std::vector<double> idle_shares(const train::Layout& layout, const train::LayerTimes& times) {
  if (layout.asynchronous()) {
    return {};
  }
  parallel::Costs costs;
  for (int stage = 0; stage < layout.stages(); ++stage) {
    parallel::StageTimes sum{.forward = 0, .backward_input = 0, .backward_weight = 0};
    for (size_t i = layout.first_layer(stage); i < layout.ends[static_cast<size_t>(stage)]; ++i) {
      sum.forward += times.layers[i].forward;
      sum.backward_input += times.layers[i].backward_input;
      sum.backward_weight += times.layers[i].backward_weight;
    }
    costs.stages.push_back(sum);
  }
  const parallel::Timeline timeline = layout.policy
                                          ? parallel::simulate(*layout.policy, costs).second
                                          : parallel::simulate(layout.schedule, costs);
  std::vector<double> shares;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    shares.push_back(timeline.idle(rank) / timeline.makespan());
  }
  return shares;
}

/// Stages, schedule and memory over `ranks` ranks.
Json grid_json(const io::Config& config, const train::RunShape& run,
               std::span<const std::unique_ptr<model::Layer>> layers, int ranks) {
  const train::LayerTimes times = train::estimated_times(config, run.problem, run.teacher);
  train::PlanInput input{.config = config,
                         .problem = run.problem,
                         .layers = layers,
                         .start = run.start,
                         .times = times,
                         .ranks = ranks,
                         .threads = run.threads,
                         .place = run.place,
                         .carrier = train::planned_carrier(config, run.place.device),
                         .teacher = run.teacher};
  try {
    const train::Plan plan = train::make_plan(input);
    const parallel::Grid& grid = plan.layout.grid;
    const std::vector<double> idle = idle_shares(plan.layout, times);
    Json found{{"ranks", ranks},
               {"replicas", grid.data},
               {"schedule", grid.pipeline > 1 ? plan.layout.schedule.name : "none"},
               {"ends", plan.layout.ends},
               {"micro_batch", plan.fit.choice.micro_batch},
               {"micro_batches", train::share_of(config, grid.data) / plan.fit.choice.micro_batch},
               {"recompute", name_of(plan.fit.choice.recompute)},
               {"notes", plan.notes},
               {"process", plan.fit.plan.needed()}};
    for (int stage = 0; stage < grid.pipeline; ++stage) {
      input.rank = grid.rank_of({.stage = stage, .replica = 0});
      const train::MemoryPlan memory = train::plan_with_storages(input, plan, {});
      Json one{{"rank", input.rank}, {"parameters", memory.total_size}};
      for (const train::PartShape& part : plan.layout.parts(stage)) {
        one["layers"].push_back({part.first, part.end - 1});
      }
      one["kept_parameters"] = memory.total_kept;
      one["peak"] = json_of(memory.peak, memory.total_size);
      one["process"] = memory.needed();
      one["checkpoint_copy"] = memory.checkpoint_copy;
      if (!idle.empty()) {
        one["idle_share"] = idle[static_cast<size_t>(stage)];
      }
      found["stages"].push_back(one);
    }
    return found;
  } catch (const Failure& failure) {
    return {{"ranks", ranks}, {"error", failure.what()}};
  }
}

/// Keys without effect on any grid that the run may get: unknown numbers of stages and replicas
/// count as several.
std::vector<std::string> unused_keys(const io::Config& config, bool pruned, bool on_device,
                                     int ranks) {
  const int64_t stages = config.parallel.pipeline;
  return config::keys_without_effect(
      config, {.on_device = on_device,
               .pruned = pruned,
               .replicas = ranks > 0 && stages > 0 ? std::max<int64_t>(1, ranks / stages) : 2,
               .stages = stages > 0 ? stages : 2});
}

Json listing(const io::Config& given, const train::WeightSource& files, int ranks) {
  io::Config config = given;
  const bool prunes = config.pruning.prunes() && config.pruning.file.empty();
  if (!prunes) {
    config.pruning.method = "none";  // a mask file is not read
    config.pruning.file.clear();
  }
  const std::optional<train::TeacherFile> opened = train::open_teacher(config);
  const train::TeacherFile* teacher = opened ? &*opened : nullptr;
  const AssumedProblem problem = assume_problem(config, teacher);
  const model::Layers layers = model::make_layers(config.model, problem.shape);
  train::check_sizes(layers);
  const std::vector<sparse::ParameterSpec> specs = model::parameters_of(layers);
  config::check_patterns(config, specs);
  const train::RunShape run{.problem = problem.shape,
                            .threads = std::max(1, static_cast<int>(config.run.threads)),
                            .place = kernels::planning(config.run.backend),
                            .start = train::initial_masks(config, specs, files),
                            .teacher = teacher};
  const int grid = ranks > 0 ? ranks : static_cast<int>(config.parallel.pipeline);
  io::Config alone = config;  // one rank with all layers
  alone.parallel.pipeline = 1;
  if (grid > 1) {
    alone.train.memory_budget.clear();  // is that of the grid's ranks
  }
  const Fitting fitting = fit_or_tell(alone, run);
  const train::MemoryPlan& plan = fitting.fit.plan;
  const train::PassChoice& choice = fitting.fit.choice;
  io::Config unpruned = config;
  unpruned.pruning.method = "none";
  const train::RunShape dense{.problem = run.problem,
                              .threads = run.threads,
                              .place = run.place,
                              .start = train::initial_masks(unpruned, specs),
                              .teacher = teacher};
  Json found{
      {"network", model::network_of(config.model).describe(config.model, problem.shape.classes)},
      {"parameters", plan.total_size},
      {"prunable_parameters", count_prunable(specs, config.pruning)},
      {"micro_batch", choice.micro_batch},
      {"recompute", name_of(choice.recompute)},
      {"flops_per_step", plan.pass.flops * static_cast<double>(config.train.global_batch) /
                             static_cast<double>(choice.micro_batch)},
      {"tape_bytes", plan.pass.tape_bytes},
      {"activations", plan.pass.activations},
      {"dense", json_of(train::plan_memory(unpruned, dense, choice).last, plan.total_size)}};
  std::string assumed = problem.note;
  if (run.place.device && run.place.kernels == &kernels::by_name("dry")) {
    assumed += assumed.empty() ? "" : "; ";
    assumed += "no workspace of the GPU's kernels: this build has no CUDA";
  }
  if (!assumed.empty()) {
    found["assumed"] = assumed;
  }
  if (const auto unused =
          unused_keys(given, given.pruning.prunes() || run.start.sparse, run.place.device, ranks);
      !unused.empty()) {
    found["without_effect"] = unused;
  }
  if (prunes || run.start.sparse) {
    const auto regrowths = pruning::regrowths_of(config.pruning, config.train.steps);
    const double pruned = prunes ? pruning::sparsity_of(config.pruning)
                                 : sparsity_of(run.start.kept, specs, config.pruning);
    found["sparsity"] = regrowths.empty() ? pruned : std::min(pruned, regrowths.back().sparsity);
    found["kept_parameters"] = plan.total_kept;
    found["pruned"] = json_of(plan.last, plan.total_size);
  }
  found["parts"] = json_of(plan.parts);
  if (teacher != nullptr) {
    found["teacher"] = model::network_of(teacher->config.model)
                           .describe(teacher->config.model, teacher->problem.classes);
    found["parts"]["teacher"] = plan.teacher;
  }
  found["peak"] = json_of(plan.peak, plan.total_size);
  found["process"] = plan.needed();
  if (plan.checkpoint_copy > 0) {
    found["checkpoint_copy"] = {{"bytes", plan.checkpoint_copy},
                                {"fits", fitting.fit.copies_checkpoints}};
  }
  if (run.place.device) {
    found["backend"] = config.run.backend;
    found["pinned"] = json_of(plan.pinned, plan.total_size);
  }
  if (grid > 1) {
    found["grid"] = grid_json(config, run, layers, grid);
    if (!config.train.memory_budget.empty()) {
      found["fits"] = !found["grid"].contains("error");
    }
  } else if (!config.train.memory_budget.empty()) {
    found["fits"] = fitting.error.empty();
    const std::string& note = fitting.error.empty() ? fitting.fit.note : fitting.error;
    found["note"] = note.empty() ? "it fits train.memory_budget" : note;
  }
  return found;
}

}  // namespace

void print_listing(const io::Config& config, const train::WeightSource& files, int ranks,
                   bool json) {
  const Json found = listing(config, files, ranks);
  if (json) {
    print_json(found);
  } else {
    print(listing_text(found, config));
  }
}

}  // namespace espalier::cli
