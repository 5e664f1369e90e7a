// Records the last step of a pipeline and its simulation.
#include <algorithm>
#include <cstring>

#include "io/files/folders.h"
#include "io/run/metrics.h"
#include "parallel/pipeline/schedule/draw.h"
#include "parallel/transport/busy.h"
#include "parallel/transport/collectives.h"
#include "src/train/run/summary.h"

namespace espalier::train {
namespace {

using parallel::ActionKind;
using parallel::Timeline;
using Json = nlohmann::ordered_json;

/// Gathers the actions of all ranks of a pipeline on its rank 0; times start at the first action.
Timeline measured_timeline(const parallel::RunTimes& mine, parallel::Communicator& pipeline) {
  std::vector<parallel::TimedAction> actions = mine.actions;
  for (parallel::TimedAction& timed : actions) {
    timed.begin += mine.begin;
    timed.end += mine.begin;
  }
  Timeline timeline;
  double first = mine.begin;
  for (const auto& bytes : parallel::gather(pipeline, std::as_bytes(std::span(actions)))) {
    auto& rank = timeline.ranks.emplace_back(bytes.size() / sizeof(parallel::TimedAction));
    if (!bytes.empty()) {
      std::memcpy(static_cast<void*>(rank.data()), bytes.data(), bytes.size());
    }
    first = rank.empty() ? first : std::min(first, rank.front().begin);
  }
  for (auto& rank : timeline.ranks) {
    for (parallel::TimedAction& timed : rank) {
      timed.begin -= first;
      timed.end -= first;
    }
  }
  return timeline;
}

/// Mean times of the actions of each stage.
parallel::Costs mean_costs(const Timeline& timeline, int stages) {
  struct Mean {
    double sum = 0;
    int count = 0;
    double value() const { return count == 0 ? 0 : sum / count; }
  };
  std::vector<std::array<Mean, 4>> means(static_cast<size_t>(stages));
  for (const auto& rank : timeline.ranks) {
    for (const auto& [action, begin, end] : rank) {
      Mean& mean = means[static_cast<size_t>(action.stage)].at(static_cast<size_t>(action.kind));
      mean.sum += end - begin;
      ++mean.count;
    }
  }
  parallel::Costs costs;
  for (const auto& stage : means) {
    auto of = [&stage](ActionKind kind) { return stage.at(static_cast<size_t>(kind)).value(); };
    const double whole = of(ActionKind::backward);
    costs.stages.push_back({.forward = of(ActionKind::forward),
                            .backward_input = of(ActionKind::backward_input) + whole / 2,
                            .backward_weight = of(ActionKind::backward_weight) + whole / 2});
  }
  return costs;
}

Json numbers_of(const Timeline& timeline) {
  return {{"makespan", timeline.makespan()}, {"idle_share", timeline.idle_share()}};
}

/// Numbers by stage; the same on all ranks.
Json delays_of(const Layout& layout, const Pipeline& pipeline, Ranks& ranks) {
  constexpr size_t kNumbers = 4;
  std::vector<double> numbers(kNumbers * static_cast<size_t>(layout.stages()), 0);
  for (int stage = 0; stage < layout.stages(); ++stage) {
    if (layout.schedule.rank_of(stage) != ranks.stage()) {
      continue;
    }
    const PartWeights& weights = pipeline.weights()[layout.part_of(stage)];
    const auto first = kNumbers * static_cast<size_t>(stage);
    numbers[first] = weights.delay().mean();
    numbers[first + 1] = static_cast<double>(weights.delay().most);
    numbers[first + 2] = 1 + weights.kept();
    numbers[first + 3] = static_cast<double>(weights.bytes());
  }
  parallel::all_reduce_small(ranks.pipeline(), numbers, parallel::Combine::sum);
  Json delays = Json::array();
  for (size_t first = 0; first < numbers.size(); first += kNumbers) {
    delays.push_back({{"mean", numbers[first]},
                      {"most", static_cast<int64_t>(numbers[first + 1])},
                      {"weight_versions", static_cast<int64_t>(numbers[first + 2])},
                      {"extra_weight_bytes", static_cast<int64_t>(numbers[first + 3])}});
  }
  return delays;
}

}  // namespace

Json record_pipeline(const std::filesystem::path& directory, const Layout& layout,
                     const Pipeline& pipeline, Ranks& ranks) {
  const Json delays = layout.asynchronous() ? delays_of(layout, pipeline, ranks) : Json();
  constexpr const char* kMeasured = "pipeline-measured.svg";
  constexpr const char* kPredicted = "pipeline-predicted.svg";
  if (!layout.pipelined()) {
    if (ranks.world().rank() == 0) {
      const parallel::Busy busy(ranks.world());
      io::remove_file(directory / kMeasured);
      io::remove_file(directory / kPredicted);
    }
    return delays.is_null() ? delays : Json{{"schedule", layout.schedule.name}, {"delays", delays}};
  }
  const Timeline measured = measured_timeline(pipeline.times(), ranks.pipeline());
  if (ranks.world().rank() != 0 || measured.makespan() <= 0) {
    return nullptr;
  }
  const parallel::Busy busy(ranks.world());
  const parallel::Costs costs = mean_costs(measured, layout.stages());
  const Timeline predicted = layout.policy ? simulate(*layout.policy, costs).second
                                           : simulate(pipeline.last_schedule(), costs);
  io::write_text_atomically(directory / kMeasured,
                            parallel::draw_svg(measured, "measured, last step"));
  io::write_text_atomically(
      directory / kPredicted,
      parallel::draw_svg(predicted, layout.schedule.name + ", simulated with these times"));
  Json json{{"schedule", layout.schedule.name},
            {"stages", layout.stages()},
            {"micro_batches", pipeline.last_schedule().micro_batches},
            {"ends", layout.ends},
            {"messages", name_of(pipeline.carrier())}};
  if (layout.policy) {
    json["in_flight"] = layout.policy->in_flight;
  }
  if (!delays.is_null()) {
    json["delays"] = delays;
  }
  json["measured"] = numbers_of(measured);
  json["predicted"] = numbers_of(predicted);
  return json;
}

}  // namespace espalier::train
