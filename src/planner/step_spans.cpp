#include "src/planner/step_spans.h"

#include <algorithm>

#include "io/run/metrics.h"

namespace espalier::planner {

double steps_in_timeline(const StepPrediction& step) {
  if (!step.plan.layout.asynchronous()) {
    return 1;
  }
  const auto forwards =
      std::ranges::count_if(step.timeline.ranks.front(), [](const parallel::TimedAction& timed) {
        return timed.action.kind == parallel::ActionKind::forward;
      });
  return static_cast<double>(forwards) /
         static_cast<double>(step.micro_batches * step.plan.layout.schedule.chunks);
}

double length_of_spans(const StepPrediction& step) {
  return step.plan.layout.asynchronous() ? step.timeline.makespan() : step.step;
}

std::vector<StepSpan> spans_of(const StepPrediction& step) {
  const double end = step.timeline.makespan();
  std::vector<StepSpan> spans;
  for (size_t i = 0; i < step.timeline.ranks.size(); ++i) {
    const auto rank = static_cast<int>(i);
    for (const auto& [action, begin, action_end] : step.timeline.ranks[i]) {
      spans.push_back({.rank = rank,
                       .event = {.track = Track::compute,
                                 .name = std::string(name_of(action.kind)),
                                 .begin = begin,
                                 .end = action_end},
                       .stage = action.stage,
                       .micro_batch = action.micro_batch});
    }
    if (step.plan.layout.asynchronous()) {
      continue;
    }
    const double reduced = end + step.reduction;
    if (step.reduction > 0) {
      spans.push_back(
          {.rank = rank,
           .event = {
               .track = Track::allreduce, .name = "reduction", .begin = end, .end = reduced}});
    }
    spans.push_back({.rank = rank,
                     .event = {.track = Track::optimizer,
                               .name = "update",
                               .begin = reduced,
                               .end = reduced + step.update}});
  }
  return spans;
}

void write_step_trace(const std::filesystem::path& path, const StepPrediction& step) {
  const size_t count = step.timeline.ranks.size();
  std::vector<std::vector<TraceEvent>> events(count);
  std::vector<std::vector<nlohmann::ordered_json>> arguments(count);
  for (StepSpan& span : spans_of(step)) {
    const auto rank = static_cast<size_t>(span.rank);
    auto& shown = arguments[rank].emplace_back(nlohmann::ordered_json::object());
    if (span.stage >= 0) {
      shown = {{"stage", span.stage}, {"micro_batch", span.micro_batch}};
    }
    events[rank].push_back(std::move(span.event));
  }
  std::vector<io::RankTrace> ranks;
  for (size_t rank = 0; rank < count; ++rank) {
    ranks.push_back(
        {.rank = static_cast<int>(rank), .events = events[rank], .arguments = arguments[rank]});
  }
  io::write_trace(path, ranks);
}

}  // namespace espalier::planner
