#include "src/planner/measured_run.h"

#include <algorithm>
#include <cmath>

#include "io/checkpoint/checkpoint.h"
#include "io/run/metrics.h"
#include "io/run/parse_json.h"
#include "src/config/parse.h"
#include "src/core/error.h"

namespace espalier::planner {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The value at `path`, if it is a finite number of at least 0.
std::optional<double> number_at(const json& root, std::initializer_list<const char*> path) {
  const json* at = &root;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) {
      return std::nullopt;
    }
    at = &(*at)[key];
  }
  const double value = at->is_number() ? at->get<double>() : NAN;
  return std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

json read_summary(const fs::path& directory) {
  const fs::path file = directory / "summary.json";
  std::error_code error;
  check(fs::exists(file, error),
        "{} is missing: the run has not ended, so its layout is not known; predict its config "
        "instead ({} with --ranks), or let the run end",
        file.string(), (directory / "config.toml").string());
  json summary = io::parse_json(io::read_text(file, "run file"));
  check(summary.is_object(), "{} is no JSON object: it is not of a run; give another run directory",
        file.string());
  return summary;
}

/// summary[path], which the layout needs.
int layout_number(const fs::path& directory, const json& summary,
                  std::initializer_list<const char*> path) {
  const double value = number_at(summary, path).value_or(0);
  constexpr double kMost = 1 << 24;
  check(value >= 1 && value <= kMost && value == std::floor(value),
        "{} has no number \"{}\": it is not of a run that ended; give another run directory",
        (directory / "summary.json").string(), fmt::join(path, "."));
  return static_cast<int>(value);
}

/// The layers of each of several stages.
std::vector<int64_t> partition_of(const fs::path& directory, const json& summary) {
  const json pipeline = summary.value("pipeline", json());
  const json ends = pipeline.is_object() ? pipeline.value("ends", json()) : json();
  std::vector<int64_t> counts;
  int64_t last = 0;
  bool ascending = ends.is_array() && !ends.empty();
  for (const json& end : ascending ? ends : json::array()) {
    ascending = ascending && end.is_number_integer() && end > last;
    if (ascending) {
      counts.push_back(end.get<int64_t>() - last);
      last = end;
    }
  }
  check(
      ascending,
      "{} has no ascending numbers \"pipeline.ends\", the layers of each stage: it is damaged, or "
      "not of a run that ended; give another run directory",
      (directory / "summary.json").string());
  return counts;
}

/// The choices that the run made.
void apply_layout(const fs::path& directory, const json& summary, io::Config& config) {
  config.parallel.pipeline = layout_number(directory, summary, {"grid", "pipeline"});
  config.train.micro_batch = layout_number(directory, summary, {"planned_peak", "micro_batch"});
  if (const json planned = summary["planned_peak"].value("recompute", json());
      planned == "none" || planned == "selective" || planned == "full") {
    config.train.recompute = planned;
  }
  if (config.parallel.pipeline > 1) {
    config.parallel.partition = partition_of(directory, summary);
    if (config.parallel.schedule == "auto") {
      config.parallel.schedule = "1f1b";  // of files of earlier versions
    }
  }
  config.run.backend = summary.value("backend", json()) == "cuda" ? "cuda" : "cpu";
  const json manifest = summary.value("manifest", json());
  const json storages = manifest.is_object() ? manifest.value("storages", json()) : json();
  for (const auto& [parameter, storage] : storages.items()) {
    if (storage.is_string()) {
      config.sparse.storage.patterns.emplace_back(parameter, storage);
    }
  }
}

/// Throws Failure unless the newest of `lines` have the layout of summary.json: else they were
/// measured with another layout than the one that is predicted.
void check_layout(const fs::path& directory, const json& summary, std::span<const json> lines) {
  const json* layout = nullptr;
  for (const json& line : lines) {
    if (const auto found = line.find("layout"); found != line.end() && found->is_object()) {
      layout = &*found;
    }
  }
  if (layout == nullptr) {
    return;  // of an older version of the program
  }
  const int ranks = layout_number(directory, summary, {"ranks"});
  const int stages = layout_number(directory, summary, {"grid", "pipeline"});
  check(number_at(*layout, {"ranks"}) == ranks && number_at(*layout, {"stages"}) == stages,
        "{} is of an earlier launch, of {} ranks and {} stages, and the steps since then have "
        "another layout: let the run end, or predict its config ({} with --ranks)",
        (directory / "summary.json").string(), ranks, stages, (directory / "config.toml").string());
}

void read_metrics(const fs::path& directory, const json& summary, bool enqueues, MeasuredRun& run) {
  const fs::path file = directory / "metrics.jsonl";
  std::vector<json> lines = io::read_metrics(file);
  // Later lines are of a launch that has not ended.
  const double last = number_at(summary, {"steps"}).value_or(INFINITY);
  std::erase_if(lines, [last](const json& line) { return line["step"].get<double>() > last; });
  check_layout(directory, summary, lines);
  const std::span<const json> settled = io::settled(lines);
  const auto seconds = [&](const char* key) {
    std::vector<double> values;
    for (const json& line : settled) {
      if (const auto value = number_at(line, {key})) {
        values.push_back(*value * 1e-3);
      }
    }
    return io::median(std::move(values));
  };
  const std::optional<double> step = seconds("step_ms");
  check(step && *step > 0, "{} has no step_ms: nothing was measured; give a run that made steps",
        file.string());
  run.steps = settled.size();
  run.step = *step;
  if (!enqueues) {
    run.compute = seconds("compute_ms");
    run.waiting = seconds("wait_ms");
    run.reduction = seconds("collective_ms");
    run.update = seconds("update_ms");
  }
}

void read_memory(const json& summary, MeasuredRun& run) {
  const json memory = summary.value("memory", json());
  const json ranks = memory.is_object() ? memory.value("ranks", json()) : json();
  for (const json& rank : ranks.is_array() ? ranks : json::array()) {
    if (const auto peak = number_at(rank, {"all", "peak"})) {
      run.memory = std::max(run.memory.value_or(0), *peak);
    }
  }
}

/// Sums rows ("gemm 64x64x256") by name.
void read_operations(const json& summary, MeasuredRun& run) {
  const json times = summary.value("operation_times", json());
  const json rows = times.is_object() ? times.value("rows", json()) : json();
  for (const json& row : rows.is_array() ? rows : json::array()) {
    const json text = row.is_object() ? row.value("operation", json()) : json();
    const auto time = number_at(row, {"ms_per_step"});
    if (!text.is_string() || !time) {
      continue;
    }
    std::string name = text;
    const size_t space = name.rfind(' ');
    if (space != name.npos && name.find_first_not_of("0123456789x", space + 1) == name.npos) {
      name.resize(space);
    }
    run.operations[name] += *time * 1e-3;
  }
}

}  // namespace

MeasuredRun read_measured_run(const fs::path& directory, std::span<const std::string> overrides) {
  const fs::path config = directory / "config.toml";
  std::error_code error;
  check(fs::exists(config, error),
        "{} is a directory without config.toml: give a config file, or the directory that "
        "`espalier train` wrote (run.out)",
        directory.string());
  MeasuredRun run{.name = fs::weakly_canonical(directory, error).filename().string(),
                  .config = config::load_saved(config)};
  const json summary = read_summary(directory);
  run.ranks = layout_number(directory, summary, {"ranks"});
  apply_layout(directory, summary, run.config);
  for (const std::string& override_ : overrides) {
    config::apply_override(run.config, override_);
  }
  config::validate(run.config);
  read_metrics(directory, summary, run.config.run.backend == "cuda", run);
  read_memory(summary, run);
  if (const auto files = io::checkpoints_in(directory / "checkpoints"); !files.empty()) {
    run.checkpoint = static_cast<double>(fs::file_size(files.back()));
  }
  read_operations(summary, run);
  return run;
}

std::vector<Compared> compare(const StepPrediction& step, const PlannedRank& first,
                              const std::optional<CheckpointPrediction>& checkpoints,
                              const MeasuredRun& run) {
  // Actions of an asynchronous schedule contain reductions and updates.
  const bool asynchronous = step.plan.layout.asynchronous();
  double compute = 0;
  for (const auto& [action, seconds] : first.seconds) {
    compute += seconds;
  }
  std::vector<Compared> rows{
      {.name = "step", .predicted = step.step, .measured = run.step},
      {.name = "compute",
       .predicted = asynchronous ? step.compute : compute,
       .measured = run.compute},
      {.name = "waiting",
       .predicted = asynchronous ? step.waiting : first.waiting,
       .measured = run.waiting},
      {.name = "reduction", .predicted = step.reduction, .measured = run.reduction},
      {.name = "update", .predicted = step.update, .measured = run.update},
      {.name = "memory peak",
       .unit = Compared::Unit::bytes,
       .predicted = static_cast<double>(train::sum_of(step.plan.fit.plan.peak)),
       .measured = run.memory}};
  if (checkpoints && run.checkpoint) {
    rows.push_back({.name = "checkpoint",
                    .unit = Compared::Unit::bytes,
                    .predicted = checkpoints->bytes,
                    .measured = run.checkpoint});
  }
  if (run.operations.empty()) {
    return rows;
  }
  // The host's work: computing less the operations.
  std::map<std::string, double> measured = run.operations;
  if (run.compute && run.update) {
    double other = *run.compute + *run.update;
    for (const auto& [name, seconds] : run.operations) {
      other -= seconds;
    }
    measured.emplace("other", std::max(other, 0.0));
  }
  std::map<std::string, Compared> operations;
  for (const auto& [name, seconds] : first.by_operation) {
    operations[name].predicted = seconds;
  }
  for (const auto& [name, seconds] : measured) {
    operations[name].measured = seconds;
  }
  const size_t parts = rows.size();
  for (auto& [name, row] : operations) {
    row.name = name;
    row.operation = true;
    rows.push_back(std::move(row));
  }
  std::ranges::stable_sort(std::span(rows).subspan(parts), std::greater{}, [](const Compared& row) {
    return std::max(row.predicted, row.measured.value_or(0));
  });
  return rows;
}

}  // namespace espalier::planner
