#include "src/report/timeline.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "src/core/trace.h"

namespace espalier::report {
namespace {

using nlohmann::json;

/// Microseconds by which a span may begin before its neighbour ends: the file rounds both.
constexpr double kClockNoise = 0.5;

struct Window {
  std::string label;
  double begin = 0;
  double end = 0;
};

struct Step {
  double begin = 0;
  double end = 0;
  double length() const { return end - begin; }
};

/// Rank 0's steps: work up to the end of the optimizer's spans, from the end of the step before.
std::vector<Step> steps_of(const RunData& run) {
  constexpr auto kCompute = static_cast<int>(Track::compute);
  constexpr auto kOptimizer = static_cast<int>(Track::optimizer);
  int first_rank = run.spans.front().rank;
  for (const TraceSpan& span : run.spans) {
    first_rank = std::min(first_rank, span.rank);
  }
  std::vector<const TraceSpan*> spans;
  for (const TraceSpan& span : run.spans) {
    if (span.rank == first_rank && (span.lane == kOptimizer || span.lane == kCompute)) {
      spans.push_back(&span);
    }
  }
  std::sort(spans.begin(), spans.end(), [](auto* a, auto* b) { return a->begin < b->begin; });
  std::vector<Step> steps;
  Step step{.begin = spans.empty() ? 0 : spans.front()->begin, .end = -1};
  for (const TraceSpan* span : spans) {
    if (span->lane == kOptimizer) {
      step.end = std::max(step.end, span->begin + span->duration);
    } else if (step.end >= 0) {  // the optimizer is done and other work begins
      steps.push_back(step);
      step = {.begin = span->begin, .end = -1};
    }
  }
  if (step.end >= 0) {
    steps.push_back(step);
  }
  return steps;
}

std::vector<Window> windows_of(const RunData& run) {
  const std::vector<Step> steps = steps_of(run);
  if (steps.empty()) {  // no optimizer in the trace: show its first second
    double begin = run.spans.front().begin;
    for (const TraceSpan& span : run.spans) {
      begin = std::min(begin, span.begin);
    }
    return {{.label = "First second", .begin = begin, .end = begin + 1e6}};
  }
  std::vector<size_t> order;
  for (size_t i = steps.size() / 2; i < steps.size(); ++i) {
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return steps[a].length() < steps[b].length(); });
  const size_t typical = order[order.size() / 2];
  // A run traces some of its steps only: neighbours belong to the window where they follow at once.
  auto follows = [&](size_t step) {
    return step > 0 && step < steps.size() &&
           steps[step].begin - steps[step - 1].end < steps[typical].length();
  };
  const size_t from = follows(typical) ? typical - 1 : typical;
  const size_t to = follows(typical + 1) ? typical + 1 : typical;
  const auto slowest =
      std::max_element(steps.begin(), steps.end(),
                       [](const Step& a, const Step& b) { return a.length() < b.length(); });
  return {{.label = "Typical steps", .begin = steps[from].begin, .end = steps[to].end},
          {.label = "First steps",
           .begin = steps.front().begin,
           .end = steps[std::min<size_t>(1, steps.size() - 1)].end},
          {.label = "Slowest step", .begin = slowest->begin, .end = slowest->end}};
}

/// The row of each span within its lane: the first one free at its begin. A nested span is thus
/// below its parent, an overlapping one below the other. `spans` must be sorted by begin,
/// longest first.
std::vector<int> rows_of(const std::vector<const TraceSpan*>& spans) {
  std::map<std::pair<int, int>, std::vector<double>> busy_until;  // by (rank, lane), a number a row
  std::vector<int> rows;
  for (const TraceSpan* span : spans) {
    std::vector<double>& ends = busy_until[{span->rank, span->lane}];
    const auto free = std::find_if(ends.begin(), ends.end(),
                                   [&](double end) { return end <= span->begin + kClockNoise; });
    rows.push_back(static_cast<int>(free - ends.begin()));
    if (free == ends.end()) {
      ends.push_back(span->begin + span->duration);
    } else {
      *free = span->begin + span->duration;
    }
  }
  return rows;
}

double tenth_of_microsecond(double microseconds) { return std::round(microseconds * 10) / 10; }

json spans_of(std::span<const TraceSpan> all, const Window& window, size_t limit,
              std::map<std::string, size_t>& names) {
  std::vector<const TraceSpan*> inside;
  for (const TraceSpan& span : all) {
    if (span.begin < window.end && span.begin + span.duration > window.begin) {
      inside.push_back(&span);
    }
  }
  const size_t found = inside.size();
  if (found > limit) {
    std::nth_element(inside.begin(), inside.begin() + static_cast<std::ptrdiff_t>(limit),
                     inside.end(), [](auto* a, auto* b) { return a->duration > b->duration; });
    inside.resize(limit);
  }
  std::sort(inside.begin(), inside.end(), [](auto* a, auto* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->duration > b->duration;
  });
  const std::vector<int> rows = rows_of(inside);
  json spans = json::array();
  for (size_t i = 0; i < inside.size(); ++i) {
    const TraceSpan& span = *inside[i];
    const size_t name = names.try_emplace(span.name, names.size()).first->second;
    spans.push_back({span.rank, span.lane, rows[i], tenth_of_microsecond(span.begin - window.begin),
                     tenth_of_microsecond(span.duration), name});
  }
  return {{"label", window.label},
          {"begin", tenth_of_microsecond(window.begin)},
          {"length", tenth_of_microsecond(window.end - window.begin)},
          {"left_out", found - inside.size()},
          {"spans", std::move(spans)}};
}

/// `windows`: of `spans`, with the numbers of their names in `names`.
json timeline_json(std::span<const TraceSpan> spans, const std::vector<std::string>& lanes,
                   const std::map<std::string, size_t>& names, json windows) {
  std::vector<std::string> name_list(names.size());
  for (const auto& [name, index] : names) {
    name_list[index] = name;
  }
  std::set<int> ranks;
  for (const TraceSpan& span : spans) {
    ranks.insert(span.rank);
  }
  return {{"lanes", lanes}, {"ranks", ranks}, {"names", name_list}, {"windows", windows}};
}

}  // namespace

json timeline(const RunData& run, size_t limit) {
  if (run.spans.empty()) {
    return nullptr;
  }
  std::map<std::string, size_t> names;
  json windows = json::array();
  for (const Window& window : windows_of(run)) {
    windows.push_back(spans_of(run.spans, window, limit, names));
  }
  return timeline_json(run.spans, run.lanes, names, std::move(windows));
}

json timeline_of_step(const StepSpans& step, size_t limit) {
  std::map<std::string, size_t> names;
  json windows = json::array();
  windows.push_back(
      spans_of(step.spans, {.label = step.label, .begin = 0, .end = step.length}, limit, names));
  return timeline_json(step.spans, step.lanes, names, std::move(windows));
}

}  // namespace espalier::report
