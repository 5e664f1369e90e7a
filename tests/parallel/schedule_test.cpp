// Schedules against the closed forms of their papers, for many sizes and times, and the checker
// against invalid schedules.
#include "parallel/pipeline/schedule/registry.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "parallel/pipeline/runner.h"
#include "parallel/pipeline/schedule/check.h"
#include "parallel/pipeline/schedule/draw.h"
#include "parallel/pipeline/schedule/message_driven.h"
#include "parallel/pipeline/schedule/passes.h"
#include "tests/support/failure.h"

namespace espalier::parallel::schedule_test {
namespace {

constexpr double kTolerance = 1e-9;
constexpr int kUnlimited = 1 << 20;  // messages on a channel

const std::vector<StageTimes>& some_times() {
  static const std::vector<StageTimes> times{
      {1, 1, 1}, {1, 1.2, 0.8}, {2, 3, 2}, {1.5, 1.5, 1}, {0.7, 1.1, 0.9}};
  return times;
}

/// Times of each stage when the network is cut into `chunks` times as many.
StageTimes part(const StageTimes& times, int chunks) {
  return {times.forward / chunks, times.backward_input / chunks, times.backward_weight / chunks};
}

Timeline run(const Schedule& schedule, const StageTimes& times) {
  return simulate(schedule, Costs::even(schedule.stages(), times));
}

/// Largest idle time or bubble of a rank.
double most(const Timeline& timeline, double (Timeline::*of)(size_t) const) {
  double most = 0;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    most = std::max(most, (timeline.*of)(rank));
  }
  return most;
}
double most_idle(const Timeline& timeline) { return most(timeline, &Timeline::idle); }
double largest_bubble(const Timeline& timeline) { return most(timeline, &Timeline::bubble); }

/// Sizes (p, m) that all schedules except interleaved accept.
std::vector<ScheduleShape> shapes() {
  std::vector<ScheduleShape> all;
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    for (const int micro_batches : {2 * ranks, 2 * ranks + 1, 3 * ranks + 2, 8 * ranks}) {
      all.push_back({.ranks = ranks, .micro_batches = micro_batches});
    }
  }
  return all;
}

/// The bounds of a schedule in its paper, for F = Bi = W = 1 of 1 / p of the network.
struct Row {
  std::string_view name;
  /// Largest idle time of a rank between its first and last action.
  double (*bubble)(int p, int v);
  /// Most stage activations that a rank holds, for backward_input or for backward_weight.
  int (*held)(int p, int m, int v);
};

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows{
      {"gpipe", [](int p, int) { return 3.0 * (p - 1); }, [](int, int m, int) { return m; }},
      {"1f1b", [](int p, int) { return 3.0 * (p - 1); }, [](int p, int, int) { return p; }},
      {"interleaved", [](int p, int v) { return 3.0 * (p - 1) / v; },
       [](int p, int, int v) { return v * p + p - 1; }},
      {"zb-h1", [](int p, int) { return 1.0 * (p - 1); }, [](int p, int, int) { return p + 1; }},
      {"zb-v", [](int, int) { return 0.0; }, [](int p, int, int) { return 2 * p; }},
      {"dualpipe-v", [](int p, int) { return (p - 1) / 2.0; },
       [](int p, int, int) { return 2 * p + 1; }},
      {"v-half", [](int p, int) { return 1.5 * p; },
       [](int p, int, int) { return (p + 2) / 2 * 2; }},
      {"v-min", [](int p, int) { return 2.0 * p; },
       [](int p, int, int) { return (p + 4) / 3 * 2; }},
      {"async", [](int p, int) { return 3.0 * (p - 1); }, [](int p, int, int) { return p; }},
      {"message-driven", [](int p, int) { return 3.0 * (p - 1) + 3; },
       [](int p, int, int) { return p; }},
  };
  return kRows;
}

TEST(Schedules, EachHasARow) {
  std::vector<std::string> listed;
  for (const Row& row : rows()) {
    listed.emplace_back(row.name);
  }
  EXPECT_EQ(listed, names(schedules()));
}

/// Uses `shape.ranks` in flight where the order depends on arrival times.
Schedule schedule_for(const Row& row, const ScheduleShape& shape) {
  if (!schedule_entry(row.name).by_arrival()) {
    return make_schedule(row.name, shape);
  }
  return simulate(
             {.ranks = shape.ranks, .micro_batches = shape.micro_batches, .in_flight = shape.ranks},
             Costs::even(shape.ranks, {1, 1, 1}))
      .first;
}

TEST(Schedules, KeepTheBoundsOfTheirPapers) {
  for (const Row& row : rows()) {
    for (ScheduleShape shape : shapes()) {
      for (const int chunks : {1, 2, 3}) {
        shape.chunks = chunks;
        if (row.name == "interleaved") {
          shape.micro_batches = (shape.micro_batches + shape.ranks - 1) / shape.ranks * shape.ranks;
        }
        const Schedule schedule = schedule_for(row, shape);
        SCOPED_TRACE(
            fmt::format("{} p={} m={} v={}", row.name, shape.ranks, shape.micro_batches, chunks));
        const int buffers = needed_buffers(schedule);
        EXPECT_LE(buffers, 2 * shape.ranks);
        if (buffers > 1) {
          EXPECT_THROW(check_schedule(schedule, buffers - 1), Failure) << "fewer are enough";
        }
        const ScheduleFacts facts = check_schedule(schedule, buffers);
        const int sent = std::accumulate(facts.messages.begin(), facts.messages.end(), 0);
        int crossings = 0;
        for (int stage = 0; stage < schedule.stages(); ++stage) {
          crossings += schedule.crosses(stage) ? 1 : 0;
        }
        EXPECT_EQ(sent, 2 * crossings * shape.micro_batches);
        EXPECT_LE(std::ranges::max(facts.tapes),
                  row.held(shape.ranks, shape.micro_batches, chunks));
        EXPECT_LE(largest_bubble(run(schedule, part({1, 1, 1}, schedule.chunks))),
                  row.bubble(shape.ranks, chunks) + 1e-6);
      }
    }
  }
}

TEST(Schedules, FewerMicroBatchesThanStages) {
  for (const std::string& name : names(schedules())) {
    if (name == "interleaved" || name == "dualpipe-v" || schedule_entry(name).by_arrival()) {
      continue;  // these refuse, or have no fixed order
    }
    for (int m = 1; m < 6; ++m) {
      const Schedule schedule = make_schedule(name, {.ranks = 6, .micro_batches = m});
      SCOPED_TRACE(fmt::format("{} m={}", name, m));
      EXPECT_NO_THROW(check_schedule(schedule, needed_buffers(schedule)));
      const StageTimes times = part({1, 1, 1}, schedule.chunks);
      EXPECT_GE(run(schedule, times).makespan(), 5 * times.forward + 3 * m - kTolerance);
    }
  }
}

TEST(Schedules, OneMicroBatchGoesThroughAnyPlacement) {
  for (const std::string_view name : {"1f1b", "interleaved", "zb-v"}) {
    const Schedule like = make_schedule(name, {.ranks = 3, .micro_batches = 6, .chunks = 2});
    const Schedule one = one_micro_batch(like);
    EXPECT_NO_THROW(check_schedule(one, 1));
    EXPECT_EQ(one.stages(), like.stages());
  }
}

TEST(Schedules, EvaluationRunsForwardsOnly) {
  for (const std::string_view name : {"1f1b", "interleaved", "zb-v"}) {
    const Schedule like = make_schedule(name, {.ranks = 3, .micro_batches = 6, .chunks = 2});
    for (const int m : {1, 2, 3, 7}) {
      const Schedule evaluation = forward_only(like, m);
      const Timeline timeline = run(evaluation, {1, 1, 1});
      for (size_t rank = 0; rank < 3; ++rank) {
        EXPECT_NEAR(timeline.busy(rank), m * like.chunks, kTolerance);
      }
      EXPECT_LE(needed_local_buffers(evaluation), 3);
    }
  }
}

TEST(Schedules, GPipeAnd1F1B) {
  for (const ScheduleShape& shape : shapes()) {
    for (const StageTimes& times : some_times()) {
      const int p = shape.ranks;
      const int m = shape.micro_batches;
      const double bubble = (p - 1) * (times.forward + times.backward());
      for (const auto& schedule : {make_schedule("gpipe", shape), make_schedule("1f1b", shape)}) {
        const Timeline timeline = run(schedule, times);
        for (size_t rank = 0; rank < static_cast<size_t>(p); ++rank) {
          EXPECT_NEAR(timeline.idle(rank), bubble, kTolerance * m) << schedule.name;
        }
      }
      const auto all = check_schedule(make_schedule("gpipe", shape), kUnlimited);
      const auto few = check_schedule(make_schedule("1f1b", shape), kUnlimited);
      for (int rank = 0; rank < p; ++rank) {
        EXPECT_EQ(all.activations[rank], m);
        EXPECT_EQ(few.activations[rank], std::min(m, p - rank));
        EXPECT_EQ(few.delay[rank], 0);
      }
    }
  }
}

TEST(Schedules, Interleaved) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int v : {1, 2, 3, 4}) {
      for (const int groups : {2, 3, 5}) {
        for (const StageTimes& times : some_times()) {
          const Schedule schedule =
              make_schedule("interleaved", {.ranks = p, .micro_batches = groups * p, .chunks = v});
          const Timeline timeline = run(schedule, part(times, v));
          EXPECT_NEAR(most_idle(timeline), (p - 1) * (times.forward + times.backward()) / v, 1e-6);
          const auto facts = check_schedule(schedule, kUnlimited);
          // With one chunk the order still warms up by 2 (p - 1).
          EXPECT_EQ(facts.activations[0], v * p + p - 1);
        }
      }
    }
  }
}

TEST(Schedules, ZeroBubble) {
  for (const ScheduleShape& shape : shapes()) {
    for (const StageTimes& times : some_times()) {
      const int p = shape.ranks;
      if (times.backward_weight > times.forward || times.backward_weight > times.backward_input) {
        continue;  // the formulas take the weight part as the shortest
      }
      const double f = times.forward, bi = times.backward_input, w = times.backward_weight;
      EXPECT_NEAR(largest_bubble(run(make_schedule("zb-h1", shape), times)), (p - 1) * (f + bi - w),
                  1e-6);
      const auto h1 = check_schedule(make_schedule("zb-h1", shape), kUnlimited);
      for (int rank = 0; rank < p; ++rank) {
        const auto r = static_cast<size_t>(rank);
        EXPECT_EQ(h1.activations[r], p - rank);
        EXPECT_LE(h1.tapes[r], p + 1);
      }
    }
    const Schedule v = make_schedule("zb-v", shape);
    EXPECT_NEAR(largest_bubble(run(v, part({1, 1, 1}, 2))), 0, 1e-6);
    for (const int held : check_schedule(v, kUnlimited).activations) {
      EXPECT_LE(held, 2 * shape.ranks);  // half stages: as many as 1f1b's p whole ones
    }
  }
}

/// DualPipe's table: (PP/2 - 1)(F&B + B - 3W), with PP stages on PP / 2 ranks, pairs run as one, B
/// the whole backward.
TEST(Schedules, DualPipe) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {2 * p, 2 * p + 1, 4 * p}) {
      const Schedule schedule = make_schedule("dualpipe-v", {.ranks = p, .micro_batches = m});
      for (const StageTimes& times : {StageTimes{1, 1, 1}, StageTimes{2, 2, 2}}) {
        Costs costs = Costs::even(schedule.stages(), times);
        costs.fuse_pairs = true;
        const double pair = times.forward + times.backward();
        const Timeline timeline = simulate(schedule, costs);
        EXPECT_NEAR(most_idle(timeline),
                    (p - 1) * (pair + times.backward() - 3 * times.backward_weight), 1e-6)
            << "p=" << p << " m=" << m;
      }
      for (const int held : check_schedule(schedule, kUnlimited).activations) {
        EXPECT_LE(held, 2 * p + 1);
      }
    }
  }
}

TEST(Schedules, AsynchronousDelayIsTheDistanceToTheEnd) {
  for (const ScheduleShape& shape : shapes()) {
    const auto facts = check_schedule(make_schedule("async", shape), kUnlimited);
    for (int stage = 0; stage < shape.ranks; ++stage) {
      EXPECT_EQ(facts.delay[stage], shape.ranks - 1 - stage);
    }
  }
}

TEST(Schedules, UpdatesOfSeveralMicroBatchesDelayLess) {
  for (const int p : {2, 4, 8}) {
    for (const int every : {1, 2, 3, 7}) {
      const auto facts = check_schedule(make_schedule("async", {.ranks = p,
                                                                .micro_batches = every * 2 * p,
                                                                .micro_batches_per_update = every}),
                                        kUnlimited);
      for (int stage = 0; stage < p; ++stage) {
        const int ahead = p - 1 - stage;  // micro-batches
        EXPECT_EQ(facts.delay[stage], (ahead + every - 1) / every)
            << "p=" << p << " every=" << every << " stage " << stage;
      }
    }
  }
  EXPECT_THROW(
      check_schedule(
          make_schedule("async", {.ranks = 2, .micro_batches = 5, .micro_batches_per_update = 2}),
          kUnlimited),
      Failure);
}

TEST(Schedules, OneRankInjectsTheDelaysOfMany) {
  for (const int p : {2, 3, 8}) {
    for (const int every : {1, 3}) {
      const ScheduleShape shape{
          .micro_batches = every * 9, .chunks = p, .micro_batches_per_update = every};
      const Schedule one = schedule_entry("async").build(shape);
      const auto facts = check_schedule(one, kUnlimited);
      const auto many = check_schedule(
          make_schedule(
              "async", {.ranks = p, .micro_batches = every * 9, .micro_batches_per_update = every}),
          kUnlimited);
      EXPECT_EQ(one.stages(), p);
      EXPECT_EQ(facts.delay, many.delay);
      EXPECT_EQ(facts.stage_activations, many.stage_activations);
      EXPECT_EQ(facts.messages.front(), 0);
    }
  }
}

TEST(MessageDriven, IdleTimeIsThatOfTheHandComputedCases) {
  const auto idle = [](int m, int limit, double latency) {
    Costs costs = Costs::even(8, {1, 1, 1});
    costs.latency = latency;
    const auto [schedule, timeline] =
        simulate({.ranks = 8, .micro_batches = m, .in_flight = limit}, costs);
    check_schedule(schedule, kUnlimited);
    return most_idle(timeline);
  };
  // 21 if a gradient that arrives as a rank becomes free counts as arrived, 24 if it does not.
  EXPECT_NEAR(idle(64, 8, 0), 21, 3 + kTolerance);
  EXPECT_NEAR(idle(256, 16, 0.25), 24.5, kTolerance);
  EXPECT_NEAR(idle(256, 8, 0.25), (214 + 288) / 2.0, 38);

  Costs costs = Costs::even(8, {1, 1, 1});
  costs.latency = 0.25;
  const Schedule fixed = make_schedule("1f1b", {.ranks = 8, .micro_batches = 256});
  EXPECT_NEAR(most_idle(simulate(fixed, costs)), 136, 1);
  EXPECT_NEAR(
      most_idle(simulate(make_schedule("gpipe", {.ranks = 8, .micro_batches = 256}), costs)),
      21 + 3.5, kTolerance);
  EXPECT_LE(best_in_flight(8, 256, costs), 16);
}

TEST(MessageDriven, HoldsNoMoreThanItsLimit) {
  for (const int limit : {1, 3, 8, 12}) {
    const auto [schedule, timeline] =
        simulate({.ranks = 5, .micro_batches = 20, .in_flight = limit}, Costs::even(5, {1, 1, 1}));
    const ScheduleFacts facts = check_schedule(schedule, kUnlimited);
    EXPECT_EQ(facts.activations[0], limit);
    EXPECT_EQ(facts.activations[4], 1);
  }
}

/// On random times the makespan is at least every schedule's lower bound, and 1F1B's at least that
/// of its longest stage.
TEST(Simulator, RespectsBoundsOnRandomTimes) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> time(0.1, 2.0);
  std::uniform_int_distribution<int> size(1, 6);
  for (int trial = 0; trial < 200; ++trial) {
    const int p = size(random);
    const int m = 2 * p + size(random);
    for (const Row& row : rows()) {
      if (row.name == "interleaved") {
        continue;  // takes multiples of p
      }
      const Schedule schedule = schedule_for(row, {.ranks = p, .micro_batches = m});
      Costs costs;
      double path = 0;  // of one micro-batch there and back
      std::vector<double> work(static_cast<size_t>(p));
      costs.latency = time(random) / 4;
      costs.transfer = time(random) / 8;
      for (int stage = 0; stage < schedule.stages(); ++stage) {
        const StageTimes t{time(random), time(random), time(random)};
        costs.stages.push_back(t);
        path += t.forward + t.backward_input +
                (schedule.crosses(stage) ? 2 * (costs.latency + costs.transfer) : 0);
        work[schedule.rank_of(stage)] += m * (t.forward + t.backward());
      }
      const Timeline timeline = simulate(schedule, costs);
      EXPECT_GE(timeline.makespan(), path - kTolerance);
      for (size_t rank = 0; rank < work.size(); ++rank) {
        EXPECT_NEAR(timeline.busy(rank), work[rank], 1e-6);
        EXPECT_GE(timeline.makespan(), work[rank] - kTolerance);
        EXPECT_LE(timeline.bubble(rank), timeline.idle(rank) + kTolerance);
        for (size_t i = 1; i < timeline.ranks[rank].size(); ++i) {
          EXPECT_GE(timeline.ranks[rank][i].begin, timeline.ranks[rank][i - 1].end - kTolerance);
        }
      }
    }
  }
}

TEST(Checker, RejectsDroppedAndDoubledActions) {
  for (const Row& row : rows()) {
    const std::string_view name = row.name;
    const Schedule whole = schedule_for(row, {.ranks = 3, .micro_batches = 6, .chunks = 2});
    ASSERT_NO_THROW(check_schedule(whole, kUnlimited)) << name;
    for (size_t rank = 0; rank < whole.programs.size(); ++rank) {
      for (size_t i = 0; i < whole.programs[rank].size(); ++i) {
        SCOPED_TRACE(fmt::format("{} rank {}: {}", name, rank, describe(whole.programs[rank][i])));
        Schedule broken = whole;
        auto& program = broken.programs[rank];
        program.erase(program.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_THROW(check_schedule(broken, kUnlimited), Failure);
        broken = whole;
        auto& doubled = broken.programs[rank];
        doubled.insert(doubled.begin() + static_cast<std::ptrdiff_t>(i), doubled[i]);
        EXPECT_THROW(check_schedule(broken, kUnlimited), Failure);
      }
    }
  }
}

TEST(Checker, RejectsSwapsOfDependentActions) {
  const Schedule whole = make_schedule("zb-h1", {.ranks = 3, .micro_batches = 6});
  int rejected = 0;
  for (size_t rank = 0; rank < whole.programs.size(); ++rank) {
    for (size_t i = 1; i < whole.programs[rank].size(); ++i) {
      Schedule broken = whole;
      Action& first = broken.programs[rank][i - 1];
      Action& second = broken.programs[rank][i];
      const bool depends = first.stage == second.stage && first.micro_batch == second.micro_batch;
      std::swap(first, second);
      if (depends) {
        SCOPED_TRACE(describe(first));
        if (first.kind == ActionKind::step || second.kind == ActionKind::step ||
            sends(first.kind) || receives(second.kind) || computes(first.kind)) {
          EXPECT_THROW(check_schedule(broken, kUnlimited), Failure);
          ++rejected;
        }
      }
    }
  }
  EXPECT_GT(rejected, 20);
  // Two messages in the wrong order.
  Schedule crossed = make_schedule("gpipe", {.ranks = 2, .micro_batches = 2});
  auto& sender = crossed.programs[0];
  const auto is_send = [](const Action& a) { return a.kind == ActionKind::send_activation; };
  const auto first = std::ranges::find_if(sender, is_send);
  const auto second = std::find_if(first + 1, sender.end(), is_send);
  std::swap(first->micro_batch, second->micro_batch);
  EXPECT_THROW(check_schedule(crossed, kUnlimited), Failure);
}

TEST(Checker, NamesADeadlock) {
  // Both ranks wait for the other's first message.
  Schedule schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 2});
  auto& program = schedule.programs[0];
  const auto gradient = std::ranges::find(program, ActionKind::receive_gradient, &Action::kind);
  std::rotate(program.begin(), gradient, gradient + 1);
  EXPECT_THAT(failure_of([&] { check_schedule(schedule, kUnlimited); }), HasSubstr("never ends"));
}

TEST(Builders, SizesThatDoNotFitNameTheFix) {
  EXPECT_THAT(failure_of([] {
                make_schedule("interleaved", {.ranks = 4, .micro_batches = 10, .chunks = 2});
              }),
              HasSubstr("8 or 12"));
  EXPECT_THROW(make_schedule("dualpipe-v", {.ranks = 4, .micro_batches = 7}), Failure);
  EXPECT_THROW(make_schedule("zigzag", {.ranks = 4, .micro_batches = 8}), Failure);
  EXPECT_THROW(make_schedule("1f1b", {.ranks = 0, .micro_batches = 8}), Failure);
}

TEST(Drawing, ShowsEveryAction) {
  const Timeline timeline = run(make_schedule("1f1b", {.ranks = 2, .micro_batches = 3}), {1, 1, 1});
  EXPECT_EQ(draw_text(timeline),
            "rank 0  |F0-F1-......B0----F2-B1----...B2----|\n"
            "rank 1  |...F0-B0----F1-B1----F2-B2----......|\n");
  const std::string svg = draw_svg(timeline, "1f1b");
  const auto count = [&svg](std::string_view text) {
    size_t found = 0;
    for (size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count("<title>"), 12U);
}

}  // namespace
}  // namespace espalier::parallel::schedule_test
