#include "src/train/stage/layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "parallel/pipeline/runner.h"
#include "parallel/pipeline/schedule/registry.h"
#include "src/optim/prediction.h"

namespace espalier::train {
namespace {

using parallel::Schedule;

/// Ends of the stages, if the config gives their numbers of layers.
std::vector<size_t> given_ends(const std::vector<int64_t>& counts, size_t stages, size_t layers) {
  check(
      counts.size() == stages,
      "parallel.partition lists {} stages, and parallel.pipeline x chunks are {}: give one number "
      "of layers for each",
      counts.size(), stages);
  const int64_t sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  check(sum == static_cast<int64_t>(layers) && std::ranges::min(counts) >= 1,
        "parallel.partition = [{}] has {} layers in all, and the network has {} (embedding, blocks "
        "and "
        "head, or hidden layers and classifier): give numbers of at least 1 that sum to {}",
        fmt::join(counts, ", "), sum, layers, layers);
  std::vector<size_t> ends;
  size_t end = 0;
  for (const int64_t count : counts) {
    end += static_cast<size_t>(count);
    ends.push_back(end);
  }
  return ends;
}

/// Of several steps of an asynchronous schedule, between two drains.
Schedule segment_of(std::string_view name, int ranks, int chunks, int every, int64_t steps) {
  check(every * steps <= INT32_MAX,
        "{} steps between two drains have {} micro-batches, more than 2^31 - 1; set a smaller "
        "train.global_batch or a larger train.micro_batch",
        steps, every * steps);
  return parallel::schedule_entry(name).build({.ranks = ranks,
                                               .micro_batches = static_cast<int>(every * steps),
                                               .chunks = chunks,
                                               .micro_batches_per_update = every});
}

/// The weights before the last update must be old enough for all stages.
void check_delay(const io::ParallelConfig& config, const Schedule& schedule, int delay) {
  if (optim::prediction_entry(config.weight_prediction).previous) {
    check(delay <= 1,
          "parallel.weight_prediction = \"{}\" keeps two versions of the weights, so with {} "
          "stages an update needs at least {} micro-batches per replica, not {}; set a smaller "
          "train.micro_batch or a larger train.global_batch",
          config.weight_prediction, schedule.stages(), schedule.stages() - 1,
          schedule.micro_batches_per_update);
  }
}

/// The schedule of one step: without programs if it depends on arrival times; of an
/// asynchronous schedule an example.
Schedule schedule_of(const io::ParallelConfig& config, const parallel::ScheduleShape& shape) {
  const parallel::ScheduleEntry& entry = parallel::schedule_entry(config.schedule);
  if (entry.by_arrival()) {
    return {.name = std::string(entry.name),
            .ranks = shape.ranks,
            .micro_batches = shape.micro_batches,
            .programs = {}};
  }
  if (!entry.synchronous) {
    const int chunks = shape.ranks == 1 ? static_cast<int>(config.delay_stages) : 1;
    return segment_of(entry.name, shape.ranks, chunks, shape.micro_batches,
                      2 * shape.ranks * chunks);
  }
  return parallel::make_schedule(entry.name, shape);
}

}  // namespace

std::vector<PartShape> Layout::parts(int rank) const {
  std::vector<PartShape> shapes;
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    const int stage = schedule.stage_of(rank, chunk);
    const auto number = static_cast<size_t>(stage);
    PartShape shape{.first = first_layer(stage), .end = ends[number]};
    if (policy) {
      shape.tapes = stage + 1 == stages() ? 1 : policy->in_flight;
    } else {
      shape.tapes = std::max(1, facts_.stage_activations[number]);
      shape.deferred = facts_.stage_weight_parts[number];
    }
    shapes.push_back(shape);
  }
  std::ranges::sort(shapes, {}, &PartShape::first);
  return shapes;
}

Schedule Layout::segment(int64_t steps) const {
  return segment_of(schedule.name, schedule.ranks, schedule.chunks,
                    schedule.micro_batches_per_update, steps);
}

size_t Layout::part_of(int stage) const {
  const int rank = schedule.rank_of(stage);
  size_t before = 0;
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    before += schedule.stage_of(rank, chunk) < stage ? 1 : 0;
  }
  return before;
}

std::vector<int64_t> Layout::partition() const {
  std::vector<int64_t> counts;
  for (int stage = 0; stage < stages(); ++stage) {
    counts.push_back(static_cast<int64_t>(ends[static_cast<size_t>(stage)] - first_layer(stage)));
  }
  return counts;
}

parallel::PipelineShape Layout::messages(std::vector<size_t> bytes,
                                         parallel::CarrierKind carrier) const {
  // One more than needed, so that a sender does not wait until its receiver has read. Evaluation
  // sends groups of one message per rank.
  const int needed = policy ? policy->in_flight : needed_buffers_ + 1;
  return {.placement = schedule.placement,
          .chunks = schedule.chunks,
          .buffers = std::max(needed, grid.pipeline),
          .local_buffers = policy ? 1 : std::max(needed_local_buffers_, grid.pipeline),
          .message_bytes = std::move(bytes),
          .carrier = carrier};
}

Layout make_layout(const io::Config& config, int ranks, int64_t micro_batches,
                   const LayerTimes& times) {
  std::vector<double> costs;
  for (const parallel::StageTimes& layer : times.layers) {
    costs.push_back(layer.forward + layer.backward());
  }
  const auto pipeline = static_cast<int>(config.parallel.pipeline);
  Layout layout;
  layout.grid = parallel::make_grid(ranks, pipeline,
                                    parallel::rank_order_by_name(config.parallel.rank_order));
  const parallel::ScheduleShape shape{.ranks = pipeline,
                                      .micro_batches = static_cast<int>(micro_batches),
                                      .chunks = static_cast<int>(config.parallel.virtual_stages)};
  layout.schedule = schedule_of(config.parallel, shape);
  const auto stages = static_cast<size_t>(layout.stages());
  check(
      stages <= costs.size(),
      "parallel.pipeline = {} with {} chunk{} a rank makes {} stages, and the network has only {} "
      "layers: use fewer stages, or more layers",
      pipeline, layout.schedule.chunks, layout.schedule.chunks == 1 ? "" : "s", stages,
      costs.size());
  layout.ends = config.parallel.partition.empty()
                    ? balance_ranks(costs, layout.schedule)
                    : given_ends(config.parallel.partition, stages, costs.size());
  if (parallel::schedule_entry(config.parallel.schedule).by_arrival()) {
    layout.policy = parallel::MessageDriven{
        .ranks = pipeline,
        .micro_batches = shape.micro_batches,
        .in_flight = parallel::best_in_flight(pipeline, shape.micro_batches,
                                              stage_costs(layout.ends, times))};
  } else {
    layout.needed_buffers_ = parallel::needed_buffers(layout.schedule);
    layout.needed_local_buffers_ = parallel::needed_local_buffers(layout.schedule);
    layout.facts_ = check_schedule(layout.schedule, layout.needed_buffers_);
    check_delay(config.parallel, layout.schedule, layout.delay(0));
  }
  return layout;
}

parallel::Costs stage_costs(std::span<const size_t> ends, const LayerTimes& times) {
  parallel::Costs costs{.stages = {}, .latency = times.latency};
  size_t layer = 0;
  for (const size_t end : ends) {
    parallel::StageTimes sum{.forward = 0, .backward_input = 0, .backward_weight = 0};
    for (; layer < end; ++layer) {
      sum.forward += times.layers[layer].forward;
      sum.backward_input += times.layers[layer].backward_input;
      sum.backward_weight += times.layers[layer].backward_weight;
    }
    costs.stages.push_back(sum);
  }
  return costs;
}

std::vector<size_t> balance(std::span<const double> costs, int stages) {
  const size_t layers = costs.size();
  const auto runs = static_cast<size_t>(stages);
  require(runs >= 1 && runs <= layers, "a layer for each stage", stages, layers);
  std::vector<double> before(layers + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // best[s][l]: cost of the most expensive of s runs over the first l layers.
  std::vector<std::vector<double>> best(runs + 1, std::vector<double>(layers + 1, kNever));
  std::vector<std::vector<size_t>> begin(runs + 1, std::vector<size_t>(layers + 1, 0));
  best[0][0] = 0;
  for (size_t s = 1; s <= runs; ++s) {
    for (size_t end = s; end <= layers; ++end) {
      for (size_t first = s - 1; first < end; ++first) {
        const double cost = std::max(best[s - 1][first], before[end] - before[first]);
        if (cost < best[s][end]) {
          best[s][end] = cost;
          begin[s][end] = first;
        }
      }
    }
  }
  std::vector<size_t> ends(runs);
  size_t end = layers;
  for (size_t s = runs; s > 0; --s) {
    ends[s - 1] = end;
    end = begin[s][end];
  }
  return ends;
}

std::vector<size_t> balance_ranks(std::span<const double> costs,
                                  const parallel::Schedule& schedule) {
  std::vector<size_t> ends = balance(costs, schedule.stages());
  if (schedule.chunks == 1) {
    return ends;
  }
  const auto load_of = [&](const std::vector<size_t>& cuts) {
    std::vector<double> ranks(static_cast<size_t>(schedule.ranks), 0);
    double stage_most = 0;
    size_t layer = 0;
    for (size_t stage = 0; stage < cuts.size(); ++stage) {
      double cost = 0;
      for (; layer < cuts[stage]; ++layer) {
        cost += costs[layer];
      }
      ranks[static_cast<size_t>(schedule.rank_of(static_cast<int>(stage)))] += cost;
      stage_most = std::max(stage_most, cost);
    }
    return std::pair(*std::ranges::max_element(ranks), stage_most);
  };
  // Sums in another order differ in their last bits, which must not decide.
  const auto less = [](const auto& a, const auto& b) {
    constexpr double kSame = 1 - 1e-9;
    return a.first < b.first * kSame || (a.first * kSame <= b.first && a.second < b.second * kSame);
  };
  const auto valid = [](const std::vector<size_t>& cuts) {
    return cuts.front() > 0 && std::ranges::adjacent_find(cuts, std::greater_equal()) == cuts.end();
  };
  const size_t movable = ends.size() - 1;
  for (bool better = true; better;) {
    better = false;
    for (size_t one = 0; one < movable && !better; ++one) {
      for (size_t other = one; other < movable && !better; ++other) {
        for (const auto& [a, b] : {std::pair{1, 0}, {-1, 0}, {1, 1}, {-1, -1}, {1, -1}, {-1, 1}}) {
          std::vector<size_t> moved = ends;
          moved[one] += static_cast<size_t>(a);
          moved[other] += static_cast<size_t>(b);
          if (valid(moved) && less(load_of(moved), load_of(ends))) {
            ends = std::move(moved);
            better = true;
            break;
          }
        }
      }
    }
  }
  return ends;
}

std::string describe(const Layout& layout, std::span<const int> node) {
  std::vector<std::string> stages;
  std::vector<int> delays;
  for (int stage = 0; stage < layout.stages(); ++stage) {
    if (layout.asynchronous()) {
      delays.push_back(layout.delay(stage));
    }
    const size_t first = layout.first_layer(stage);
    const size_t last = layout.ends[static_cast<size_t>(stage)] - 1;
    stages.push_back(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
  }
  return fmt::format("{} pipeline stage{} x {} replica{}, schedule {}{}, layers {}\n{}",
                     layout.grid.pipeline, layout.grid.pipeline == 1 ? "" : "s", layout.grid.data,
                     layout.grid.data == 1 ? "" : "s", layout.schedule.name,
                     layout.policy ? fmt::format(" ({} in flight)", layout.policy->in_flight)
                     : layout.asynchronous()
                         ? fmt::format(" (delays of {} updates)", fmt::join(delays, ", "))
                         : "",
                     fmt::join(stages, " | "), parallel::describe(layout.grid, node));
}

}  // namespace espalier::train
