// The runner: every schedule over threads and processes gives the result of one loop, to the bit.
// Lost, late and duplicated messages, and dead stages: tests/device/runner_test.cpp.
#include "parallel/pipeline/runner.h"

#include "parallel/pipeline/schedule/check.h"
#include "parallel/pipeline/schedule/registry.h"
#include "tests/parallel/pipeline_ledger.h"
#include "tests/support/matchers.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::runner_mpi_test {
namespace {

PipelineShape shape_of(const Schedule& schedule, CarrierKind carrier = CarrierKind::host) {
  return {.placement = schedule.placement,
          .chunks = schedule.chunks,
          .buffers = needed_buffers(schedule),
          .local_buffers = needed_local_buffers(schedule),
          .message_bytes = ledger_bytes(schedule.stages()),
          .carrier = carrier};
}

/// Checks the stages that this rank owns.
void expect_serial(const Schedule& schedule, const LedgerWork& work, int rank, uint64_t seed) {
  const auto all = serial_ledgers(schedule.stages(), schedule.micro_batches, seed);
  ASSERT_EQ(work.ledgers.size(), static_cast<size_t>(schedule.chunks));
  for (const auto& [stage, ledger] : work.ledgers) {
    EXPECT_EQ(schedule.rank_of(stage), rank);
    EXPECT_EQ(ledger, all.at(stage)) << schedule.name << " stage " << stage;
  }
}

/// Also with envelopes as separate messages: MPI handles host memory like device memory.
void every_schedule_equals_one_loop(CarrierKind carrier) {
  on_ranks([carrier](Communicator& comm) {
    const int p = comm.size();
    for (const ScheduleEntry* entry : schedules()) {
      if (entry->by_arrival()) {
        continue;
      }
      const std::string_view name = entry->name;
      for (const int m : {2 * p, 5 * p}) {
        const Schedule schedule =
            make_schedule(name, {.ranks = p, .micro_batches = m, .chunks = 3});
        Arena arena;
        Stream stream(arena, 1);
        PipelineRunner runner(comm, stream, shape_of(schedule, carrier));
        for (uint64_t step = 0; step < 3; ++step) {
          LedgerWork work(schedule.stages(), ledger_bytes(schedule.stages()), step);
          const int64_t before = comm.sent(Traffic::point_to_point).bytes;
          runner.run(schedule, work);
          expect_serial(schedule, work, comm.rank(), step);
          EXPECT_EQ(work.reduces, schedule.synchronous ? schedule.chunks : m);
          EXPECT_EQ(work.steps, work.reduces);
          int64_t bytes = 0;
          for (int s = 0; s < schedule.stages(); ++s) {
            if (schedule.crosses(s)) {
              const auto size = static_cast<int64_t>(ledger_bytes(schedule.stages())[s]);
              bytes += schedule.rank_of(s) == comm.rank() ? m * size : 0;
              bytes += schedule.rank_of(s + 1) == comm.rank() ? m * size : 0;
            }
          }
          EXPECT_EQ(comm.sent(Traffic::point_to_point).bytes - before, bytes) << name;
        }
      }
    }
  });
}

TEST(Runner, EveryScheduleEqualsOneLoop) {
  every_schedule_equals_one_loop(CarrierKind::host);
  every_schedule_equals_one_loop(CarrierKind::mpi);
}

TEST(Runner, MessageDrivenEqualsOneLoopWhateverTheTimes) {
  on_ranks([](Communicator& comm) {
    const int p = comm.size();
    for (const int limit : {1, p, 2 * p}) {
      const MessageDriven policy{.ranks = p, .micro_batches = 4 * p, .in_flight = limit};
      const Schedule grid{.ranks = p, .micro_batches = 4 * p, .programs = {}};
      Arena arena;
      Stream stream(arena, 1);
      PipelineRunner runner(comm, stream, {.buffers = limit, .message_bytes = ledger_bytes(p)});
      for (uint64_t step = 0; step < 3; ++step) {
        LedgerWork work(p, ledger_bytes(p), step);
        int held = 0;
        int most = 0;
        work.before = [&](const Action& action) {
          held += action.kind == ActionKind::forward ? 1 : 0;
          most = std::max(most, held);
          held -= action.kind == ActionKind::backward ? 1 : 0;
          const uint64_t noise =
              mix(step, static_cast<uint64_t>(100 * action.stage + action.micro_batch));
          std::this_thread::sleep_for(std::chrono::microseconds(noise % 300));
        };
        runner.run(policy, work);
        expect_serial(grid, work, comm.rank(), step);
        EXPECT_LE(most, limit);
      }
    }
  });
}

TEST(Runner, RecordsItsActions) {
  on_ranks([](Communicator& comm) {
    const Schedule schedule = make_schedule("1f1b", {.ranks = comm.size(), .micro_batches = 6});
    Arena arena;
    Stream stream(arena, 1);
    PipelineRunner runner(comm, stream, shape_of(schedule));
    LedgerWork work(schedule.stages(), ledger_bytes(schedule.stages()), 1);
    work.before = [](const Action& action) {
      if (computes(action.kind)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    runner.run(schedule, work);
    const RunTimes& times = runner.times();
    std::vector<Action> ran;
    for (const TimedAction& timed : times.actions) {
      ran.push_back(timed.action);
      EXPECT_GE(timed.end - timed.begin, 0.001);
    }
    std::vector<Action> planned = schedule.programs[comm.rank()];
    std::erase_if(planned, [](const Action& a) { return !computes(a.kind); });
    EXPECT_EQ(ran, planned);
    EXPECT_GE(times.compute, 0.012);
    EXPECT_LE(times.compute + times.waited, times.total);
  });
}

}  // namespace
}  // namespace espalier::parallel::runner_mpi_test
