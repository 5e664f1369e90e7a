// The pipeline runner compared with the simulator. Stages sleep instead of computing: any number of
// ranks fits any machine, and only the runner is measured.
//
//   pipeline_benchmark overhead   every schedule, p = 2, 4, 8, m = 8 … 64: makespan / simulated
//   pipeline_benchmark latency    1f1b and message-driven with a latency of F / 4 a hop, p = 8
//
// Forward 5 ms, backward 10 ms, messages of 16 KiB, ranks are threads. Prints one line a case:
//   schedule p m v in_flight simulated_ms measured_ms ratio idle_simulated idle_measured
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>

#include "benchmarks/steps/sleeping_work.h"
#include "parallel/pipeline/schedule/check.h"
#include "parallel/pipeline/schedule/registry.h"
#include "parallel/transport/collectives.h"
#include "parallel/transport/thread_communicator.h"

namespace espalier::parallel {
namespace {

constexpr double kForward = 5e-3;
constexpr size_t kBytes = 16 * 1024 - sizeof(Envelope);
constexpr int kSteps = 3;

struct Case {
  std::string name;
  ScheduleShape shape;
  int in_flight = 0;   ///< of message-driven
  double latency = 0;  ///< seconds
};

struct Measured {
  double makespan = 0;  ///< seconds, the shortest step
  double idle = 0;      ///< share of all ranks' time
};

struct Plan {
  Schedule schedule;
  Timeline timeline;
  Costs costs;
};

Plan plan(const Case& one) {
  const ScheduleEntry& entry = schedule_entry(one.name);
  const int chunks = entry.chunks_of(one.shape);
  const double unit = kForward / chunks;
  Plan made{.costs = Costs::even(one.shape.ranks * chunks, {unit, unit, unit})};
  made.costs.latency = one.latency;
  if (entry.by_arrival()) {
    std::tie(made.schedule, made.timeline) = simulate(
        MessageDriven{one.shape.ranks, one.shape.micro_batches, one.in_flight}, made.costs);
  } else {
    made.schedule = make_schedule(one.name, one.shape);
    made.timeline = simulate(made.schedule, made.costs);
  }
  return made;
}

Measured measure(const Case& one, const Plan& made) {
  Measured best{.makespan = 1e9};
  std::mutex mutex;
  const int ranks = one.shape.ranks;
  run_ranks(ranks,
            [&](Communicator& comm) {
              Arena arena;
              Stream stream(arena, 1);
              PipelineRunner runner(
                  comm, stream,
                  {.placement = made.schedule.placement,
                   .chunks = made.schedule.chunks,
                   .buffers = one.in_flight > 0 ? one.in_flight : needed_buffers(made.schedule) + 2,
                   .local_buffers = needed_local_buffers(made.schedule),
                   .message_bytes = std::vector<size_t>(
                       static_cast<size_t>(made.schedule.stages()) - 1, kBytes)});
              SleepingWork work(made.costs.stages);
              for (int step = 0; step < kSteps; ++step) {
                barrier(comm);
                if (schedule_entry(one.name).by_arrival()) {
                  runner.run(MessageDriven{ranks, one.shape.micro_batches, one.in_flight}, work);
                } else {
                  runner.run(made.schedule, work);
                }
                const RunTimes& times = runner.times();
                // From the first begin to the last end of a compute action, on any rank.
                std::array<double, 2> ends{-(times.begin + times.actions.front().begin),
                                           times.begin + times.actions.back().end};
                std::array<double, 1> busy{times.compute};
                all_reduce_small(comm, ends, Combine::max);
                all_reduce_small(comm, busy, Combine::sum);
                const double makespan = ends[0] + ends[1];
                const std::scoped_lock lock(mutex);
                if (makespan < best.makespan) {
                  best = {makespan, 1 - busy[0] / (makespan * ranks)};
                }
              }
            },
            {.latency = one.latency});
  return best;
}

double simulated_idle(const Timeline& timeline) {
  double busy = 0;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    busy += timeline.busy(rank);
  }
  return 1 - busy / (timeline.makespan() * static_cast<double>(timeline.ranks.size()));
}

double report(const Case& one) {
  const Plan made = plan(one);
  const Measured measured = measure(one, made);
  const double simulated = made.timeline.makespan();
  fmt::print(
      "{:<15} p={} m={:<3} v={} in_flight={:<2} simulated_ms={:<8.2f} measured_ms={:<8.2f} "
      "ratio={:.4f} idle_simulated={:.4f} idle_measured={:.4f}\n",
      one.name, one.shape.ranks, one.shape.micro_batches, made.schedule.chunks, one.in_flight,
      simulated * 1e3, measured.makespan * 1e3, measured.makespan / simulated,
      simulated_idle(made.timeline), measured.idle);
  std::fflush(stdout);
  return measured.makespan / simulated;
}

void overhead() {
  double worst = 0;
  for (const int p : {2, 4, 8}) {
    for (const int m : {8, 16, 32, 64}) {
      for (const std::string& name : names(schedules())) {
        if (name == "dualpipe-v" && m < 2 * p) {
          continue;  // cannot fill the pipeline
        }
        Case one{.name = std::string(name), .shape = {.ranks = p, .micro_batches = m, .chunks = 2}};
        one.in_flight = name == "message-driven" ? std::min(2 * p, m) : 0;
        worst = std::max(worst, report(one));
      }
    }
  }
  fmt::print("largest ratio {:.4f}\n", worst);
}

void latency() {
  constexpr double kLatency = kForward / 4;
  for (const int m : {64, 256}) {
    const ScheduleShape shape{.ranks = 8, .micro_batches = m};
    Costs costs = Costs::even(8, {kForward, kForward, kForward});
    costs.latency = kLatency;
    report({.name = "1f1b", .shape = shape, .in_flight = 0, .latency = kLatency});
    report({.name = "gpipe", .shape = shape, .in_flight = 0, .latency = kLatency});
    for (const int limit : {8, best_in_flight(8, m, costs), 16}) {
      report({.name = "message-driven", .shape = shape, .in_flight = limit, .latency = kLatency});
    }
  }
}

}  // namespace
}  // namespace espalier::parallel

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "overhead";
  if (what == "overhead") {
    espalier::parallel::overhead();
  } else if (what == "latency") {
    espalier::parallel::latency();
  } else {
    fmt::print(stderr, "usage: pipeline_benchmark [overhead|latency]\n");
    return 2;
  }
}
