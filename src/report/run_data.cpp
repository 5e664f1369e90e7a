#include "src/report/run_data.h"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "io/config/toml_text.h"
#include "io/files/raw_file.h"
#include "io/run/parse_json.h"
#include "src/core/error.h"
#include "src/core/trace.h"

namespace espalier::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Whether `file` has no link that leads out of `directory`: a run directory of somebody else must
/// not choose the files that its reader's page shows.
bool stays_inside(const fs::path& directory, const fs::path& file) {
  std::error_code error;
  const fs::path whole = fs::canonical(directory, error);
  const fs::path target = error ? fs::path() : fs::canonical(file, error);
  return !error && std::ranges::mismatch(whole, target).in1 == whole.end();
}

/// Empty if the file is missing, which adds the note `missing`, or cannot be read.
std::optional<std::string> read_text(const fs::path& directory, const std::string& name,
                                     const std::string& missing, RunData& run,
                                     uint64_t most = io::kMaxText) {
  const fs::path file = directory / name;
  std::error_code error;
  if (fs::symlink_status(file, error).type() == fs::file_type::not_found) {
    if (!missing.empty()) {
      run.notes.push_back(fmt::format("{} is missing: {}", name, missing));
    }
    return std::nullopt;
  }
  if (!stays_inside(directory, file)) {
    run.notes.push_back(name + " is a link that leads out of the run directory: it was left out.");
    return std::nullopt;
  }
  try {
    return io::read_text(file, "run file", most);
  } catch (const Failure&) {
    run.notes.push_back(name + " is no file that can be read: it was left out.");
    return std::nullopt;
  }
}

/// A copy in valid UTF-8, which the page needs; names of files and directories may not be.
std::string valid_utf8(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace))
      .get<std::string>();
}

void flatten(const toml::table& table, const std::string& prefix,
             std::map<std::string, std::string>& out) {
  for (const auto& [key, value] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = value.as_table()) {
      flatten(*inner, name + ".", out);
      continue;
    }
    if (const auto string = value.value<std::string>(); string && value.is_string()) {
      out[name] = valid_utf8(*string);
      continue;
    }
    if (const toml::value<double>* number = value.as_floating_point()) {
      out[name] = fmt::format("{}", number->get());
      continue;
    }
    std::ostringstream text;
    value.visit([&](const auto& node) { text << node; });
    out[name] = valid_utf8(text.str());
  }
}

void read_config(const fs::path& directory, RunData& run) {
  const auto text =
      read_text(directory, "config.toml", "its settings are not compared.", run, io::kMaxConfig);
  if (!text) {
    return;
  }
  if (io::longest_key(*text) > io::kMaxKeyParts) {
    run.notes.emplace_back("config.toml is no config of a run: it was left out.");
    return;
  }
  try {
    flatten(toml::parse(*text), "", run.config);
  } catch (const toml::parse_error& error) {
    run.notes.push_back(fmt::format("config.toml cannot be read (line {}: {}).",
                                    error.source().begin.line, error.description()));
  }
}

void read_summary(const fs::path& directory, RunData& run) {
  run.summary = json::object();
  const auto text = read_text(
      directory, "summary.json",
      "the run is still going, was interrupted or failed; its numbers are those so far.", run);
  if (!text) {
    return;
  }
  json parsed = io::parse_json(*text);
  if (parsed.is_object()) {
    run.summary = std::move(parsed);
    const auto end = number_at(run.summary, "steps");
    const bool continued =
        end && !run.steps.empty() && static_cast<double>(run.steps.back().step) != *end;
    if (!run.complete() && continued) {
      run.notes.push_back(fmt::format(
          "The run goes on from an earlier launch, or was interrupted: ranks, memory, pipeline and "
          "timeline are those of the launch that ended at step {:.0f}.",
          *end));
    } else if (!run.complete()) {
      run.notes.emplace_back("The run stopped before its last step: its numbers are those so far.");
    }
  } else {
    run.notes.emplace_back("summary.json is incomplete: the numbers come from metrics.jsonl.");
  }
}

StepRecord record_of(const json& line) {
  const auto number = [&](const char* key) { return number_at(line, key).value_or(kUnknown); };
  return {.step = line.at("step").get<int64_t>(),
          .seconds = number("step_ms") / 1000,
          .loss = number("loss"),
          .teacher_loss = number("teacher_loss"),
          .val_loss = number("val_loss"),
          .val_top1 = number("val_top1"),
          .val_top5 = number("val_top5"),
          .lr = number("lr"),
          .grad_norm = number("grad_norm"),
          .tokens_per_s = number("tokens_per_s"),
          .images_per_s = number("images_per_s"),
          .allreduce_bytes = number("allreduce_bytes"),
          .p2p_bytes = number("p2p_bytes"),
          .sparsity = number("sparsity")};
}

/// A repeated step (a run resumed from an older checkpoint) replaces that step and all later ones.
void append(StepRecord record, std::vector<StepRecord>& steps) {
  while (!steps.empty() && steps.back().step >= record.step) {
    steps.pop_back();
  }
  const double before = steps.empty() ? 0 : steps.back().seconds;
  record.seconds = before + (std::isnan(record.seconds) ? 0 : record.seconds);
  steps.push_back(record);
}

/// The entries of two layouts that differ, as "ranks 2 → 1, replicas 2 → 1".
std::string changes_of(const json& before, const json& after) {
  constexpr size_t kMost = 100;  // bytes of a value
  const auto text = [&](const json& layout, const std::string& key) {
    const json value = layout.value(key, json());
    const std::string all = value.is_null()     ? "none"
                            : value.is_string() ? value.get<std::string>()
                                                : value.dump();
    return valid_utf8(all.substr(0, kMost));
  };
  std::set<std::string> keys;
  for (const json& layout : {before, after}) {
    for (const auto& [key, value] : layout.items()) {
      keys.insert(key);
    }
  }
  constexpr size_t kMostKeys = 32;
  std::vector<std::string> changes;
  for (const std::string& key : keys) {
    if (before.value(key, json()) != after.value(key, json()) && changes.size() < kMostKeys) {
      std::string name = valid_utf8(key.substr(0, kMost));
      std::ranges::replace(name, '_', '-');
      changes.push_back(fmt::format("{} {} → {}", name, text(before, key), text(after, key)));
    }
  }
  return fmt::format("{}", fmt::join(changes, ", "));
}

/// Counts the changes of the layout; only the first line of a launch has "layout".
void read_layout(const json& line, json& layout, size_t& changes, RunData& run) {
  constexpr size_t kMost = 20;  // that a page shows
  const json found = line.value("layout", json());
  if (!found.is_object() || found == layout) {
    return;
  }
  if (!layout.is_null()) {
    ++changes;
    if (run.layouts.size() < kMost) {
      run.layouts.push_back(
          {.step = line["step"].get<int64_t>(), .text = changes_of(layout, found)});
    }
  }
  layout = found;
}

void read_metrics(const fs::path& directory, RunData& run) {
  const auto text = read_text(directory, "metrics.jsonl", "there are no curves.", run);
  if (!text) {
    return;
  }
  std::istringstream in(*text);
  size_t unreadable = 0;
  bool torn = false;
  json layout;
  size_t changes = 0;  // of the layout
  for (std::string line; std::getline(in, line);) {
    const json parsed = io::parse_json(line);
    if (parsed.is_object() && parsed.value("step", json()).is_number_integer()) {
      read_layout(parsed, layout, changes, run);
      append(record_of(parsed), run.steps);
      run.steps.back().layout = changes;
    } else if (in.eof()) {
      torn = true;
    } else {
      ++unreadable;
    }
  }
  if (torn) {
    run.notes.emplace_back("The last line of metrics.jsonl is torn: it was left out.");
  }
  if (unreadable > 0) {
    run.notes.push_back(
        fmt::format("{} lines of metrics.jsonl are unreadable: they were left out.", unreadable));
  }
  if (run.steps.empty()) {
    run.notes.emplace_back("metrics.jsonl holds no step yet.");
  }
  for (const LayoutChange& change : run.layouts) {
    run.notes.push_back(
        fmt::format("From step {} on the layout differs: {}. Speed and bytes are "
                    "those of the last layout.",
                    change.step, change.text));
  }
}

/// event[key] when it is an integer that an int holds, else 0.
int small_number(const json& event, const char* key) {
  const auto found = event.find(key);
  const int64_t number =
      found != event.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
  return std::in_range<int>(number) ? static_cast<int>(number) : 0;
}

/// The lane names that "thread_name" metadata gives to (rank, thread).
std::map<std::pair<int, int>, std::string> lane_names(const json& events) {
  std::map<std::pair<int, int>, std::string> names;
  for (const json& event : events) {
    if (event.is_object() && event.value("name", json()) == "thread_name" &&
        event.contains("args")) {
      const json& name = event["args"].value("name", json());
      names[{small_number(event, "pid"), small_number(event, "tid")}] =
          name.is_string() ? name : json("?");
    }
  }
  return names;
}

/// The number of a lane; lanes beyond kMaxLanes share one: a page has room for so many.
int lane_number(const std::string& name, RunData& run) {
  constexpr size_t kMaxLanes = 64;
  const auto place = std::ranges::find(run.lanes, name);
  if (place != run.lanes.end()) {
    return static_cast<int>(place - run.lanes.begin());
  }
  if (run.lanes.size() == kMaxLanes) {
    run.lanes.back() = "others";
  } else {
    run.lanes.push_back(name);
  }
  return static_cast<int>(run.lanes.size()) - 1;
}

void read_events(const json& events, RunData& run) {
  const auto names = lane_names(events);
  for (int track = 0; track < kTracks; ++track) {
    run.lanes.emplace_back(name_of(static_cast<Track>(track)));
  }
  for (const json& event : events) {
    if (!event.is_object() || event.value("ph", json()) != "X") {
      continue;
    }
    const int rank = small_number(event, "pid");
    const int thread = small_number(event, "tid");
    const auto named = names.find({rank, thread});
    const std::string lane =
        named != names.end() ? named->second : event.value("cat", fmt::format("track {}", thread));
    run.spans.push_back({.rank = rank,
                         .lane = lane_number(lane, run),
                         .name = event.value("name", ""),
                         .begin = event.value("ts", 0.0),
                         .duration = event.value("dur", 0.0)});
  }
}

void read_trace(const fs::path& directory, RunData& run) {
  const auto off = run.config.find("run.trace");
  const auto text =
      read_text(directory, "trace.json",
                run.summary.empty() || (off != run.config.end() && off->second == "false")
                    ? ""
                    : "there is no timeline.",
                run);
  if (!text) {
    return;
  }
  constexpr const char* kNoTrace =
      "trace.json is incomplete or no Chrome trace: there is no timeline.";
  const json parsed = io::parse_json(*text);
  const json& events = parsed.contains("traceEvents") ? parsed["traceEvents"] : parsed;
  if (!events.is_array()) {
    run.notes.emplace_back(kNoTrace);
    return;
  }
  try {
    read_events(events, run);
    if (run.spans.empty()) {
      run.notes.emplace_back("trace.json holds no span.");
    }
  } catch (const json::exception&) {  // a name that is no text, a time that is no number
    run.spans.clear();
    run.notes.emplace_back(kNoTrace);
  }
}

/// A picture that is copied into the page; empty if the file is missing or is none.
std::string read_picture(const fs::path& directory, const std::string& name, RunData& run) {
  std::string text = read_text(directory, name, "", run).value_or("");
  if (!text.empty() && (!text.starts_with("<svg") || valid_utf8(text) != text)) {
    run.notes.push_back(name + " is no SVG picture: it was left out.");
    text.clear();
  }
  return text;
}

}  // namespace

std::optional<double> number_at(const json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) {
    return std::nullopt;
  }
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

/// The path without links and relative parts; as it is where the system cannot follow it.
fs::path whole_path(const fs::path& directory) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(directory, error);
  return error ? directory : whole;
}

RunData read_run(const fs::path& directory) {
  std::error_code error;
  check(fs::is_directory(directory, error),
        "'{}' is no directory: give the run directories that `espalier train` wrote (run.out)",
        directory.string());
  const bool any = fs::exists(directory / "config.toml", error) ||
                   fs::exists(directory / "metrics.jsonl", error) ||
                   fs::exists(directory / "summary.json", error);
  check(any,
        "'{}' is no run directory (no config.toml, metrics.jsonl or summary.json in it): give the "
        "directory that `espalier train` wrote (run.out), not one above or below it",
        directory.string());
  RunData run;
  const fs::path whole = whole_path(directory);
  run.name = valid_utf8(whole.filename().string());
  read_config(directory, run);
  read_metrics(directory, run);
  read_summary(directory, run);
  read_trace(directory, run);
  run.pipeline_measured = read_picture(directory, "pipeline-measured.svg", run);
  run.pipeline_predicted = read_picture(directory, "pipeline-predicted.svg", run);
  return run;
}

std::vector<RunData> read_runs(std::span<const fs::path> directories) {
  check(!directories.empty(), "no run directory was given: name at least one");
  std::vector<RunData> runs;
  for (const fs::path& directory : directories) {
    runs.push_back(read_run(directory));
  }
  std::map<std::string, size_t> uses;
  for (const RunData& run : runs) {
    ++uses[run.name];
  }
  std::map<std::string, size_t> seen;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (uses[runs[i].name] > 1) {
      const fs::path whole = whole_path(directories[i]);
      runs[i].name = valid_utf8(whole.parent_path().filename().string()) + "/" + runs[i].name;
    }
    if (const size_t again = ++seen[runs[i].name]; again > 1) {
      runs[i].name += fmt::format(" ({})", again);
    }
  }
  return runs;
}

}  // namespace espalier::report
