#include "src/cli/plan/plan_output.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "parallel/pipeline/schedule/registry.h"
#include "src/cli/shared/console.h"
#include "src/config/dump.h"
#include "src/config/parse.h"
#include "src/kernels/backend.h"
#include "src/planner/planned_ranks.h"
#include "src/planner/step_spans.h"

namespace espalier::cli {
namespace {

using Json = nlohmann::ordered_json;
using planner::PlannedLayout;
using planner::StepPrediction;

std::string milliseconds_text(double seconds) { return fmt::format("{:.2f}", seconds * 1e3); }

/// "interleaved x 4": with its stages a rank.
std::string schedule_of(const StepPrediction& step) {
  const train::Layout& layout = step.plan.layout;
  if (!layout.pipelined()) {
    return "none";
  }
  const bool chosen = !layout.policy && parallel::schedule_entry(layout.schedule.name).chunks == 0;
  return layout.schedule.name + (chosen ? fmt::format(" x {}", layout.schedule.chunks) : "");
}

/// The exchange between replicas: "sra zero maxmin:4", "ring, stages first" if the stages of a
/// replica are neighbours; "none" without replicas.
std::string exchange_of(const PlannedLayout& layout) {
  const parallel::Grid& grid = layout.step.plan.layout.grid;
  if (grid.data == 1) {
    return "none";
  }
  const bool stages_first = grid.pipeline > 1 && grid.order == parallel::RankOrder::stages_first;
  const io::ParallelConfig& parallel = layout.config.parallel;
  const std::string& codec = parallel.codec.fallback;
  return parallel.reduction + (parallel.zero > 0 ? " zero" : "") +
         (codec == "fp32" ? "" : " " + codec) + (stages_first ? ", stages first" : "");
}

/// `fits`: the device has memory for it.
Json json_of(const PlannedLayout& layout, bool fits) {
  const StepPrediction& found = layout.step;
  const parallel::Grid& grid = found.plan.layout.grid;
  Json json{{"ranks", found.ranks},
            {"stages", grid.pipeline},
            {"replicas", grid.data},
            {"rank_order", name_of(grid.order)},
            {"schedule", schedule_of(found)},
            {"layers", found.plan.layout.partition()},
            {"micro_batch", found.micro_batch},
            {"micro_batches", found.micro_batches},
            {"storage", layout.config.sparse.storage.fallback},
            {"recompute", name_of(found.plan.fit.choice.recompute)},
            {"exchange", exchange_of(layout)},
            {"step_ms", found.step * 1e3},
            {"measured_ms", layout.measured ? Json(*layout.measured * 1e3) : Json()},
            {"compute_ms", found.compute * 1e3},
            {"waiting_ms", found.waiting * 1e3},
            {"reduction_ms", found.reduction * 1e3},
            {"update_ms", found.update * 1e3},
            {"samples_per_s", found.samples_per_s},
            {"flops", found.flops},
            {"bytes_reduced", found.bytes_reduced},
            {"memory", found.plan.fit.plan.needed()},
            {"fits", fits},
            {"operations_ms", Json::object()}};
  for (const auto& [name, seconds] : found.by_operation) {
    json["operations_ms"][name] = seconds * 1e3;
  }
  return json;
}

Json json_of(const planner::PlannedRank& rank, size_t number) {
  Json json{{"rank", number},
            {"layers", Json::array()},
            {"times_ms", Json::object()},
            {"memory", Json::object()}};
  for (const train::PartShape& part : rank.parts) {
    json["layers"].push_back({part.first, part.end - 1});
  }
  for (const auto& [action, seconds] : rank.seconds) {
    json["times_ms"][action] = seconds * 1e3;
  }
  json["times_ms"]["waiting"] = rank.waiting * 1e3;
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    json["memory"][std::string(name_of(static_cast<Memory>(kind)))] = rank.memory.peak.at(kind);
  }
  json["memory"]["program"] = rank.memory.outside_arena;
  return json;
}

Json json_of(const planner::CheckpointPrediction& found) {
  Json json{{"bytes", found.bytes},
            {"every", found.every},
            {"background", found.background},
            {"copy_ms", found.copy * 1e3}};
  json["write_s"] = found.write ? Json(*found.write) : Json();
  json["read_s"] = found.start ? Json(*found.start) : Json();
  json["ms_per_step"] = found.per_step ? Json(*found.per_step * 1e3) : Json();
  return json;
}

/// "checkpoints of 12.3 GB, written in 6.2 s beside training, after a copy of 40 ms; …".
std::string text_of(const planner::CheckpointPrediction& found, double step) {
  std::string text = fmt::format("checkpoints of {}", bytes_text(found.bytes));
  if (found.write) {
    text += fmt::format(", written in {:.3g} s", *found.write);
  }
  text += found.every == 0 ? ", at the end of the run"
          : found.background
              ? fmt::format(" beside training, after a copy of {:.3g} ms", found.copy * 1e3)
              : ", while steps wait";
  if (found.per_step) {
    text += fmt::format("; every {} steps: {:.3g} ms a step ({})", found.every,
                        *found.per_step * 1e3, percent(*found.per_step / step));
  }
  if (found.start) {
    text += fmt::format("; a start reads one in {:.3g} s", *found.start);
  }
  return text + (found.write ? "" : " ([disk] of the machine file would give their time)");
}

Json json_of(std::string name, const std::vector<planner::ScalingPoint>& points) {
  Json json{{"name", std::move(name)}, {"points", Json::array()}};
  for (const planner::ScalingPoint& point : points) {
    Json& one = json["points"].emplace_back(Json{{"ranks", point.ranks}});
    if (point.layout) {
      const StepPrediction& step = point.layout->step;
      one["stages"] = step.plan.layout.grid.pipeline;
      one["schedule"] = schedule_of(step);
      one["micro_batch"] = step.micro_batch;
      one["step_ms"] = step.step * 1e3;
      one["samples_per_s"] = step.samples_per_s;
    } else {
      one["refused"] = point.refused;
    }
  }
  return json;
}

/// The operations that take most of the computing time.
std::string operations_text(const StepPrediction& found) {
  std::vector<std::pair<double, std::string>> all;
  double sum = 0;
  for (const auto& [name, seconds] : found.by_operation) {
    all.emplace_back(seconds, name);
    sum += seconds;
  }
  std::ranges::sort(all, std::greater{});
  constexpr size_t kMost = 8;
  Rows rows{{"operation", "ms", "share"}};
  for (const auto& [seconds, name] : std::span(all).first(std::min(kMost, all.size()))) {
    rows.push_back({name, milliseconds_text(seconds), percent(seconds / sum)});
  }
  return table(rows);
}

std::string comparison_text(const Json& comparison) {
  Rows rows{{"", "predicted", "measured", "ratio"}};
  bool parts = true;
  for (const Json& row : comparison["rows"]) {
    if (parts && row["kind"] == "operation") {
      rows.push_back({"operation", "", "", ""});
      parts = false;
    }
    const bool bytes = row["unit"] == "bytes";
    const auto text = [&](const Json& value) {
      return value.is_null() ? "-"
             : bytes         ? bytes_text(value.get<double>())
                             : fmt::format("{:.3f}", value.get<double>());
    };
    rows.push_back(
        {row["name"].get<std::string>() + (bytes ? "" : ", ms"), text(row["predicted"]),
         text(row["measured"]),
         row["ratio"].is_null() ? "-" : fmt::format("{:.2f}", row["ratio"].get<double>())});
  }
  return fmt::format("measured in {}: medians over {} steps\n{}",
                     comparison["run"].get<std::string>(), comparison["steps"].get<size_t>(),
                     table(rows));
}

}  // namespace

PlanOutput::PlanOutput(const planner::PlannedRun& run, const planner::Machine& machine,
                       std::string assumed)
    : run_(run), machine_(machine), assumed_(std::move(assumed)) {}

void PlanOutput::plan(std::span<const int> ranks,
                      const std::optional<planner::SearchOptions>& search) {
  plans_ = planner::plan_layouts(run_, machine_, ranks, search);
  best_ = planner::best_of(plans_.found, machine_, run_.tensor);
}

std::vector<io::Config> PlanOutput::configs_of_best(size_t most) const {
  std::vector<io::Config> configs;
  for (const PlannedLayout& layout :
       std::span(plans_.found).first(std::min(most, plans_.found.size()))) {
    configs.push_back(layout.config);
  }
  return configs;
}

void PlanOutput::add_measured(std::span<const planner::Tried> tried) {
  for (size_t i = 0; i < tried.size(); ++i) {
    PlannedLayout& layout = plans_.found[i];
    if (tried[i].failure.empty()) {
      layout.measured = tried[i].seconds;
    } else {
      failures_.push_back(
          fmt::format("layout {} of those predicted cannot run: {}", i + 1, tried[i].failure));
    }
    for (planner::ScalingPoint& one : plans_.by_stages) {
      if (one.layout && config::changes(one.layout->config, layout.config).empty()) {
        one.layout->measured = layout.measured;
      }
    }
  }
  std::ranges::stable_sort(
      std::span(plans_.found).first(tried.size()), {}, [](const PlannedLayout& layout) {
        return layout.measured.value_or(std::numeric_limits<double>::infinity());
      });
  best_ = 0;
  ranks_of_best_.clear();
}

std::vector<std::string> PlanOutput::settings_of_best() const {
  const io::Config& mine = run_.config;
  io::Config config = plans_.found[best_].config;
  config.train.memory_budget = mine.train.memory_budget;  // a search looks at it itself
  if (config.parallel.pipeline == 1) {
    config.parallel.rank_order = mine.parallel.rank_order;  // without effect
    if (mine.parallel.schedule == "auto") {                 // 1f1b
      config.parallel.schedule = mine.parallel.schedule;
      config.parallel.virtual_stages = mine.parallel.virtual_stages;
    }
  }
  return config::changes(mine, config);
}

void PlanOutput::compare_with(const planner::MeasuredRun& measured) {
  comparison_ = {{"run", measured.name}, {"steps", measured.steps}, {"rows", Json::array()}};
  for (const planner::Compared& row :
       planner::compare(best(), ranks_of_best().front(), checkpoints(), measured)) {
    const bool seconds = row.unit == planner::Compared::Unit::seconds;
    const double scale = seconds ? 1e3 : 1;
    const bool both = row.measured && *row.measured > 0 && row.predicted > 0;
    comparison_["rows"].push_back(
        {{"name", row.name},
         {"kind", row.operation ? "operation" : "part"},
         {"unit", seconds ? "ms" : "bytes"},
         {"predicted", row.predicted * scale},
         {"measured", row.measured ? Json(*row.measured * scale) : Json()},
         {"ratio", both ? Json(row.predicted / *row.measured) : Json()}});
  }
}

void PlanOutput::add_scaling(std::span<const int> ranks,
                             const std::optional<planner::SearchOptions>& search) {
  if (ranks.size() < 2) {
    return;
  }
  const bool pruned = run_.config.pruning.prunes() || run_.start.pruned;
  scaling_.push_back(json_of(pruned ? "pruned" : "this config",
                             planner::scaling_of(plans_, machine_, run_.tensor, ranks)));
  if (pruned) {
    scaling_.push_back(json_of("dense", planner::dense_scaling(run_, machine_, ranks, search)));
  }
}

std::vector<std::string> PlanOutput::notes() const {
  std::vector<std::string> notes;
  if (!assumed_.empty()) {
    notes.push_back("assumed: " + assumed_);
  }
  const parallel::Grid& grid = best().plan.layout.grid;
  const auto unused = config::keys_without_effect(
      run_.config, {.on_device = kernels::planning(run_.config.run.backend).device,
                    .pruned = run_.config.pruning.prunes() || run_.start.pruned,
                    .replicas = grid.data,
                    .stages = grid.pipeline});
  if (!unused.empty()) {
    notes.push_back(fmt::format("without effect in {}: {}",
                                plans_.found.size() > 1 ? "the best layout" : "this layout",
                                fmt::join(unused, ", ")));
  }
  if (const auto faster = planner::faster_storage(run_, machine_, plans_.found[best_])) {
    notes.push_back(fmt::format(
        "with sparse.storage = \"{}\" the layers would compute in {} of the time, if the memory "
        "suffices",
        faster->storage, percent(faster->share)));
  }
  const auto steps = static_cast<double>(run_.config.train.steps);
  const auto later = planner::later_parts(run_, machine_, plans_.found[best_]);
  double run = later.empty() ? 0 : static_cast<double>(later.front().after) * best().step;
  for (size_t i = 0; i < later.size(); ++i) {
    const auto& [after, sparsity, seconds] = later[i];
    const double end = i + 1 < later.size() ? static_cast<double>(later[i + 1].after) : steps;
    run += (end - static_cast<double>(after)) * seconds;
    notes.push_back(fmt::format("after step {} {} a step takes {:.3g} ms", grouped(after),
                                sparsity > 0 ? fmt::format("(sparsity {})", sparsity) : "(dense)",
                                seconds * 1e3));
  }
  if (!later.empty()) {
    notes.push_back(fmt::format("all {} steps take {:.3g} s; dense from the start {:.3g} s",
                                grouped(run_.config.train.steps), run,
                                steps * later.back().seconds));
  }
  if (const auto found = checkpoints()) {
    notes.push_back(text_of(*found, best().step));
  }
  return notes;
}

std::vector<std::string> PlanOutput::warnings() const {
  std::vector<std::string> warnings;
  for (const PlannedLayout& layout : plans_.found) {
    if (!planner::fits(layout.step, machine_, run_.tensor)) {
      warnings.push_back(planner::shortage(run_, machine_, layout));
    }
  }
  if (const double host = planner::host_memory(ranks_of_best());
      machine_.host_memory > 0 && host > machine_.host_memory) {
    warnings.push_back(fmt::format(
        "a rank needs {} of host memory, and host.memory of the machine file gives it {}: set "
        "train.memory_budget, so that steps wait for checkpoints where it has no room for a copy, "
        "or use more stages (parallel.pipeline)",
        bytes_text(host), bytes_text(machine_.host_memory)));
  }
  for (const sparse::ParameterSpec& spec : model::parameters_of(run_.layers)) {
    if (spec.shape.count() > sparse::kMaxElements) {
      warnings.push_back(fmt::format(
          "{} has {} elements; runs support at most 2^31 - 1, so this network can only be planned",
          spec.name, spec.shape.count()));
      break;
    }
  }
  warnings.insert(warnings.end(), failures_.begin(), failures_.end());
  return warnings;
}

const std::vector<planner::PlannedRank>& PlanOutput::ranks_of_best() const {
  if (ranks_of_best_.empty()) {
    ranks_of_best_ = planner::planned_ranks(run_, machine_, plans_.found[best_].config, best());
  }
  return ranks_of_best_;
}

std::optional<planner::CheckpointPrediction> PlanOutput::checkpoints() const {
  return planner::predict_checkpoints(machine_, plans_.found[best_].config, best(),
                                      ranks_of_best());
}

Json PlanOutput::best_json() const {
  Json json{{"plan", best_}, {"by_rank", Json::array()}};
  for (const planner::PlannedRank& rank : ranks_of_best()) {
    json["by_rank"].push_back(json_of(rank, json["by_rank"].size()));
  }
  return json;
}

const PlannedLayout& PlanOutput::best_over(int ranks) const {
  const auto order = [this](const PlannedLayout& layout) {
    return std::tuple(!planner::fits(layout.step, machine_, run_.tensor), !layout.measured,
                      layout.measured.value_or(layout.step.step));
  };
  const PlannedLayout* best = nullptr;
  for (const PlannedLayout& one : plans_.found) {
    if (one.step.ranks == ranks && (best == nullptr || order(one) < order(*best))) {
      best = &one;
    }
  }
  return *best;
}

std::string PlanOutput::beside(const PlannedLayout& layout) const {
  const PlannedLayout& best = best_over(layout.step.ranks);
  if (!planner::fits(layout.step, machine_, run_.tensor)) {
    return "does not fit";
  }
  if (best.measured) {
    return layout.measured == best.measured ? "best"
           : layout.measured
               ? fmt::format("measured {:+.1f} %", 100 * (*layout.measured / *best.measured - 1))
               : "not measured";
  }
  return planner::beside(best.step, layout.step);
}

/// `measured`: some layouts of the table are.
std::vector<std::string> PlanOutput::row_of(const PlannedLayout& layout, bool measured) const {
  const StepPrediction& found = layout.step;
  std::vector<std::string> row{fmt::format("{}", found.ranks),
                               fmt::format("{}", found.plan.layout.grid.pipeline),
                               schedule_of(found),
                               fmt::format("{} x {}", found.micro_batches, found.micro_batch),
                               layout.config.sparse.storage.fallback,
                               std::string(name_of(found.plan.fit.choice.recompute)),
                               exchange_of(layout),
                               milliseconds_text(found.step),
                               milliseconds_text(found.compute),
                               milliseconds_text(found.waiting),
                               milliseconds_text(found.reduction),
                               milliseconds_text(found.update),
                               fmt::format("{:.1f}", found.samples_per_s),
                               bytes_text(static_cast<double>(found.plan.fit.plan.needed())),
                               beside(layout)};
  if (measured) {
    row.push_back(layout.measured ? milliseconds_text(*layout.measured) : "-");
  }
  return row;
}

Json PlanOutput::json() const {
  const planner::Elements elements = planner::elements_of(run_);
  Json json{
      {"machine", machine_.name},
      {"device_memory", machine_.memory * run_.tensor.ways},
      {"memory_budget", run_.config.train.memory_budget.empty()
                            ? Json()
                            : Json(config::parse_bytes(run_.config.train.memory_budget))},
      {"network",
       model::network_of(run_.config.model).describe(run_.config.model, run_.problem.classes)},
      {"parameters", elements.all},
      {"kept_parameters", elements.kept},
      {"plans", Json::array()},
      {"refused", Json::array()},
      {"best", best_json()},
      {"settings", settings_of_best()},
      {"notes", notes()},
      {"warnings", warnings()}};
  for (const PlannedLayout& layout : plans_.found) {
    Json& row = json["plans"].emplace_back(
        json_of(layout, planner::fits(layout.step, machine_, run_.tensor)));
    row["beside_best"] = beside(layout);
  }
  const auto add_points = [&](const char* key, const std::vector<planner::ScalingPoint>& points) {
    for (const planner::ScalingPoint& one : points) {
      Json& row = json[key].emplace_back(one.layout ? json_of(*one.layout, true) : Json());
      row["ranks"] = one.ranks;
      if (one.stages > 0) {
        row["stages"] = one.stages;
      }
      row[one.layout ? "beside_best" : "refused"] = one.layout ? beside(*one.layout) : one.refused;
    }
  };
  add_points("by_stages", plans_.by_stages);
  add_points("own", plans_.own);
  for (const planner::Refused& refused : plans_.refused) {
    json["refused"].push_back({{"ranks", refused.ranks},
                               {"layouts", refused.layouts},
                               {"tried", refused.tried},
                               {"reason", refused.reason}});
  }
  if (const auto found = checkpoints()) {
    json["checkpoints"] = json_of(*found);
  }
  if (!scaling_.empty()) {
    json["scaling"] = scaling_;
  }
  if (!comparison_.is_null()) {
    json["comparison"] = comparison_;
  }
  return json;
}

std::string PlanOutput::text() const {
  Rows rows{{"ranks", "stages", "schedule", "micro-batch", "storage", "recompute", "exchange",
             "step, ms", "compute", "waiting", "reduction", "update", "samples/s", "memory",
             "beside the best"}};
  const bool measured = plans_.found[best_].measured.has_value();
  if (measured) {
    rows.front().push_back("measured, ms");
  }
  for (const PlannedLayout& layout : plans_.found) {
    rows.push_back(row_of(layout, measured));
  }
  std::string text = fmt::format("on {}, predicted\n{}", machine_.name, table(rows));
  if (!plans_.by_stages.empty()) {
    rows.erase(rows.begin() + 1, rows.end());
    for (const planner::ScalingPoint& one : plans_.by_stages) {
      if (one.layout) {
        rows.push_back(row_of(*one.layout, measured));
      }
    }
    text += "the fastest with each number of stages\n" + table(rows);
  }
  rows.erase(rows.begin() + 1, rows.end());
  for (const planner::ScalingPoint& own : plans_.own) {
    if (own.layout) {
      rows.push_back(row_of(*own.layout, measured));
    } else {
      text += fmt::format("the config's own layout over {} ranks is impossible: {}\n", own.ranks,
                          own.refused);
    }
  }
  if (rows.size() > 1) {
    text += "the config's own layout\n" + table(rows);
  }
  for (const planner::ScalingPoint& one : plans_.by_stages) {
    if (!one.layout) {
      text += fmt::format("{} stages over {} ranks have no layout: {}\n", one.stages, one.ranks,
                          one.refused);
    }
  }
  for (const planner::Refused& refused : plans_.refused) {
    text += fmt::format("{} of {} layouts over {} ranks left out: {}\n", refused.layouts,
                        refused.tried, refused.ranks, refused.reason);
  }
  for (const std::vector<std::string>& list : {warnings(), notes()}) {
    for (const std::string& note : list) {
      text += note + "\n";
    }
  }
  if (const std::vector<std::string> settings = settings_of_best(); !settings.empty()) {
    text += fmt::format("settings of the best layout, over {} ranks: --set '{}'\n", best().ranks,
                        fmt::join(settings, "' --set '"));
  }
  if (!comparison_.is_null()) {
    text += comparison_text(comparison_);
  } else if (plans_.found.size() == 1) {
    text += operations_text(best());
  }
  return text;
}

report::PlannedStep PlanOutput::step_of_best() const {
  report::PlannedStep step{.length = planner::length_of_spans(best()) * 1e6};
  for (int track = 0; track < kTracks; ++track) {
    step.lanes.emplace_back(name_of(static_cast<Track>(track)));
  }
  const bool chunks = best().plan.layout.schedule.chunks > 1;
  for (planner::StepSpan& span : planner::spans_of(best())) {
    std::string name = span.micro_batch < 0
                           ? span.event.name
                           : fmt::format("{} {}", span.micro_batch, span.event.name);
    if (chunks && span.stage >= 0) {
      name += fmt::format(", stage {}", span.stage);
    }
    step.spans.push_back({.rank = span.rank,
                          .lane = static_cast<int>(span.event.track),
                          .name = std::move(name),
                          .begin = span.event.begin * 1e6,
                          .duration = (span.event.end - span.event.begin) * 1e6});
  }
  return step;
}

}  // namespace espalier::cli
