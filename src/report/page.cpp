#include <algorithm>

#include "io/run/metrics.h"
#include "src/core/arena.h"
#include "src/core/error.h"
#include "src/report/curves.h"
#include "src/report/headline.h"
#include "src/report/html_page.h"
#include "src/report/report.h"
#include "src/report/timeline.h"

namespace espalier::report {
namespace {

using nlohmann::json;

/// Over all runs of a page; together they keep the page below about 3 MB.
constexpr size_t kCurvePoints = 16'000;
constexpr size_t kTimelineSpans = 24'000;

/// {category: [bytes now, peak]} of one rank, whatever the order in summary.json.
json categories_of(const json& entry) {
  json out = json::object();
  for (int kind = 0; kind < kMemoryKinds; ++kind) {
    const std::string name(name_of(static_cast<Memory>(kind)));
    const auto found = entry.find(name);
    if (found == entry.end() || !found->is_object()) {
      continue;
    }
    const double now = number_at(*found, "bytes").value_or(0);
    out[name] = {now, number_at(*found, "peak").value_or(now)};
  }
  return out;
}

json memory_of(const RunData& run) {
  const auto memory = run.summary.find("memory");
  if (memory == run.summary.end() || !memory->is_object()) {
    return nullptr;
  }
  json out = {{"ranks", json::array()}, {"total", json::object()}};
  if (const auto ranks = memory->find("ranks"); ranks != memory->end() && ranks->is_array()) {
    for (const json& rank : *ranks) {
      out["ranks"].push_back(rank.is_object() ? categories_of(rank) : json::object());
    }
  }
  if (const auto total = memory->find("total"); total != memory->end() && total->is_object()) {
    out["total"] = categories_of(*total);
  }
  return out;
}

/// The step after which parameters are missing, for a mark on the curves; null when there is none.
json pruned_at(const RunData& run) {
  const auto first = std::find_if(run.steps.begin(), run.steps.end(),
                                  [](const StepRecord& record) { return record.sparsity > 0; });
  const bool during = first != run.steps.begin() && first != run.steps.end();
  return during ? json(first->step) : json();
}

json number_or_null(const std::optional<double>& number) { return number ? json(*number) : json(); }

json bytes_of(const RunData& run) {
  return {{"allreduce", number_or_null(allreduce_bytes(run))},
          {"p2p", number_or_null(p2p_bytes(run))}};
}

/// The steps from which on the layout differs.
json layouts_of(const RunData& run) {
  json out = json::array();
  for (const LayoutChange& change : run.layouts) {
    out.push_back({{"step", change.step}, {"text", change.text}});
  }
  return out;
}

/// summary.pipeline, as far as the page reads it.
json pipeline_numbers(const json& found) {
  json out = {
      {"measured", json::object()}, {"predicted", json::object()}, {"delays", json::array()}};
  if (!found.is_object()) {
    return out;
  }
  for (const char* which : {"measured", "predicted"}) {
    if (const auto part = found.find(which); part != found.end() && part->is_object()) {
      out[which]["idle_share"] = number_or_null(number_at(*part, "idle_share"));
    }
  }
  if (const auto delays = found.find("delays"); delays != found.end() && delays->is_array()) {
    for (const json& delay : *delays) {
      if (const auto mean = delay.is_object() ? number_at(delay, "mean") : std::nullopt; mean) {
        out["delays"].push_back({{"mean", *mean}});
      }
    }
  }
  return out;
}

/// Numbers of the pipeline, and pictures of one step. Pictures without their numbers are left out:
/// they are of an earlier launch with another layout. Null without either.
json pipeline_of(const RunData& run) {
  const json numbers = pipeline_numbers(run.summary.value("pipeline", json()));
  const bool measured = numbers["measured"].value("idle_share", json()).is_number();
  json pictures = json::array();
  if (measured && !run.pipeline_measured.empty() && !run.pipeline_predicted.empty()) {
    pictures = {run.pipeline_measured, run.pipeline_predicted};
  }
  return pictures.empty() && numbers["delays"].empty()
             ? json()
             : json{{"pictures", pictures}, {"numbers", numbers}};
}

json run_json(const RunData& run, size_t runs) {
  const size_t points = std::clamp<size_t>(kCurvePoints / runs, 100, 1500);
  const size_t spans = std::clamp<size_t>(kTimelineSpans / (3 * runs), 200, 4000);
  return {{"name", run.name},
          {"complete", run.complete()},
          {"notes", run.notes},
          {"curves", run.steps.empty() ? json() : curves(run.steps, points)},
          {"pruned_at", pruned_at(run)},
          {"layouts", layouts_of(run)},
          {"memory", memory_of(run)},
          {"bytes", bytes_of(run)},
          {"timeline", timeline(run, spans)},
          {"pipeline", pipeline_of(run)},
          {"config", run.config}};
}

json headline_json(const Headline& line) {
  json values = json::array();
  json texts = json::array();
  for (const Cell& cell : line.cells) {
    values.push_back(number_or_null(cell.value));
    texts.push_back(cell.text);
  }
  const char* better = line.better == Better::lower    ? "lower"
                       : line.better == Better::higher ? "higher"
                                                       : "";
  return {{"label", line.label}, {"hint", line.hint}, {"better", better},
          {"major", line.major}, {"values", values},  {"texts", texts}};
}

}  // namespace

std::string render_report(std::span<const RunData> runs, const Answer& answer) {
  json data = {{"runs", json::array()},
               {"headlines", json::array()},
               {"answer", {{"sentences", answer.sentences}, {"rows", answer.rows}}}};
  for (const RunData& run : runs) {
    data["runs"].push_back(run_json(run, runs.size()));
  }
  for (const Headline& line : headlines(runs)) {
    data["headlines"].push_back(headline_json(line));
  }
  return assemble_page({.title = "Espalier report",
                        .body = "report.html",
                        .script = "report.js",
                        .json = data.dump(-1, ' ', true)});
}

void write_report(std::span<const RunData> runs, const std::filesystem::path& file,
                  const Answer& answer) {
  io::write_text_atomically(file, render_report(runs, answer));
}

}  // namespace espalier::report
