// The simulated world itself: order of messages, virtual time, every kind of fault, hangs.
#include "tests/simulation/world.h"

#include <chrono>
#include <cmath>

#include "parallel/transport/busy.h"
#include "parallel/transport/collectives.h"
#include "src/core/trace.h"
#include "tests/simulation/disk.h"
#include "tests/support/matchers.h"

namespace espalier::simulation::world_test {
namespace {

using parallel::Communicator;

constexpr double kTimeout = 100;
constexpr int kRounds = 20;

/// Rounds of sums over all ranks; returns the last on each rank.
void sum_rounds(Communicator& comm, double& last) {
  comm.set_timeout(kTimeout);
  for (int round = 0; round < kRounds; ++round) {
    std::array<double, 1> sum{static_cast<double>(round * (comm.rank() + 1))};
    parallel::all_reduce_small(comm, sum, parallel::Combine::sum);
    last = sum[0];
  }
}

/// Three ranks that sum, with faults; checks that a rank that returns has the right sum.
Report sums(std::vector<Fault> faults, uint64_t seed = 1) {
  return simulate({.seed = seed, .ranks = 3, .faults = std::move(faults)}, [](Communicator& comm) {
    double last = 0;
    sum_rounds(comm, last);
    EXPECT_EQ(last, (kRounds - 1) * 6.0);
  });
}

std::vector<Ending::Kind> kinds(const Report& report) {
  std::vector<Ending::Kind> all;
  for (const Ending& ending : report.endings) {
    all.push_back(ending.kind);
  }
  return all;
}

constexpr Ending::Kind kReturned = Ending::Kind::returned;
constexpr Ending::Kind kFailure = Ending::Kind::failure;
constexpr Ending::Kind kKilled = Ending::Kind::killed;

TEST(World, FaultsThatEndNoRun) {
  using enum FaultKind;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const Fault& fault :
         std::vector<Fault>{{.kind = delay, .rank = 1, .at = 9, .seconds = 0.9 * kTimeout},
                            {.kind = stall, .rank = 2, .at = 30, .seconds = 0.9 * kTimeout},
                            {.kind = suspend, .rank = 0, .at = 30, .seconds = 9 * kTimeout}}) {
      const Report report = sums({fault}, seed);
      EXPECT_THAT(kinds(report), ElementsAre(kReturned, kReturned, kReturned)) << describe(fault);
      EXPECT_EQ(report.faults.size(), 1U);
      EXPECT_GE(report.end, fault.seconds) << describe(fault);
    }
  }
}

/// The other ranks name a rank that they wait for: the one of the fault, or one that waits for it.
TEST(World, FaultsThatLoseARank) {
  using enum FaultKind;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const FaultKind kind : {kill, close, stall, cut}) {
      const Fault fault{.kind = kind, .rank = 1, .at = 20, .seconds = 3 * kTimeout};
      const Report report = sums({fault}, seed);
      const std::string what = fmt::format("{}, seed {}", describe(fault), seed);
      EXPECT_EQ(report.endings[0].kind, kFailure) << what;
      EXPECT_FALSE(report.endings[0].lost.empty()) << what;
      EXPECT_EQ(report.endings[1].kind, kind == kill || kind == close ? kKilled : kFailure) << what;
      EXPECT_LE(report.endings[0].time, report.fault_end + 2 * kTimeout) << what;
      EXPECT_EQ(report.endings[0].time < kTimeout / 2, kind == close) << what;
    }
  }
}

TEST(World, TimeIsVirtual) {
  const auto begin = std::chrono::steady_clock::now();
  const Report report = simulate({.ranks = 2}, [](Communicator& comm) {
    comm.set_timeout(1e5);
    if (comm.rank() == 0) {
      const double start = now_seconds();
      std::array<std::byte, 4> data{};
      parallel::Request request = comm.irecv(1, {7}, data);
      EXPECT_THROW(comm.wait(request), parallel::PeerLost);
      EXPECT_NEAR(now_seconds() - start, 1e5, 2e4);
    } else {
      parallel::barrier(comm);  // which rank 0 does not enter
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

/// A slow disk is no lost rank while a Busy lives, and is one otherwise.
TEST(World, ASlowDiskShowsLifeWhileBusy) {
  for (const bool busy : {true, false}) {
    const Fault slow{.kind = FaultKind::slow_write, .rank = 0, .at = 1, .seconds = 5 * kTimeout};
    const Report report = simulate({.ranks = 3, .faults = {slow}}, [busy](Communicator& comm) {
      comm.set_timeout(kTimeout);
      if (comm.rank() == 0) {
        std::optional<parallel::Busy> shows_life;
        if (busy) {
          shows_life.emplace(comm);
        }
        touch_disk(Target::write);
      }
      parallel::barrier(comm);
    });
    EXPECT_EQ(kinds(report)[1] == kReturned, busy);
    EXPECT_GT(report.end, 5 * kTimeout);
  }
}

/// The busy rank was suspended, too: it had no chance to show life.
TEST(World, ASuspendedJobLosesNoBusyRank) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    for (int64_t at = 10; at <= 60; at += 10) {
      const Report report = simulate(
          {.seed = seed,
           .ranks = 2,
           .faults = {{.kind = FaultKind::slow_write, .at = 1, .seconds = 5 * kTimeout},
                      {.kind = FaultKind::suspend, .rank = 1, .at = at, .seconds = 9 * kTimeout}}},
          [](Communicator& comm) {
            comm.set_timeout(kTimeout);
            if (comm.rank() == 0) {
              const parallel::Busy busy(comm);
              touch_disk(Target::write);
            }
            parallel::barrier(comm);
          });
      EXPECT_THAT(kinds(report), ElementsAre(kReturned, kReturned)) << at << ", seed " << seed;
      EXPECT_EQ(report.faults.size(), 2U) << at << ", seed " << seed;
    }
  }
}

TEST(World, MessagesArriveInOrderAndMayBeFaulty) {
  const auto received = [](std::vector<Fault> faults, Report* end = nullptr) {
    std::vector<int> got;
    const Report report =
        simulate({.seed = 3, .ranks = 2, .faults = std::move(faults)}, [&got](Communicator& comm) {
          comm.set_timeout(kTimeout);
          for (int i = 1; i <= 4; ++i) {
            int value = i;
            parallel::Request request =
                comm.rank() == 0 ? comm.isend(1, {5}, std::as_bytes(std::span(&value, 1)))
                                 : comm.irecv(0, {5}, std::as_writable_bytes(std::span(&value, 1)));
            comm.wait(request);
            if (comm.rank() == 1) {
              got.push_back(value);
            }
          }
        });
    if (end != nullptr) {
      *end = report;
    }
    return got;
  };
  using enum FaultKind;
  EXPECT_THAT(received({}), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(received({{.kind = delay, .rank = 0, .at = 2, .seconds = 9}}),
              ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(received({{.kind = cut, .rank = 0, .at = 3}}), ElementsAre(1, 2));
  Report report;
  EXPECT_THAT(received({{.kind = flip, .rank = 0, .at = 2, .bit = 4}}, &report), ElementsAre(1));
  EXPECT_THAT(report.endings[1].message, HasSubstr("changed bits"));
  EXPECT_THAT(received({{.kind = flip, .rank = 0, .at = 2, .bit = 40}}, &report), ElementsAre(1));
  EXPECT_THAT(received({{.kind = duplicate, .rank = 0, .at = 2}}, &report), ElementsAre(1, 2));
  EXPECT_THAT(report.endings[1].message, HasSubstr("duplicated"));
  EXPECT_THAT(received({{.kind = drop, .rank = 0, .at = 2}}, &report), ElementsAre(1));
  EXPECT_THAT(report.endings[1].message, HasSubstr("lost"));
}

TEST(World, ABufferThatChangesWhileItIsSentIsNoticed) {
  bool noticed = false;
  for (uint64_t seed = 1; seed <= 50 && !noticed; ++seed) {  // some worlds copy small messages
    const Report report = simulate({.seed = seed, .ranks = 2}, [](Communicator& comm) {
      std::array<std::byte, 64> data{};
      parallel::Request request =
          comm.rank() == 0 ? comm.isend(1, {5}, data) : comm.irecv(0, {5}, data);
      if (comm.rank() == 0) {
        data[3] = std::byte{1};
      }
      comm.wait(request);
    });
    noticed = !report.violations.empty();
  }
  EXPECT_TRUE(noticed);
}

TEST(World, AHangEndsAndSaysWhoWaits) {
  const auto spin = [](Communicator& comm) {
    std::array<std::byte, 4> data{};
    parallel::Request request = comm.irecv(1 - comm.rank(), {9}, data);
    while (!comm.test(request)) {
    }
  };
  const Report report = simulate({.ranks = 2, .most_calls = 1000}, spin);
  EXPECT_THAT(kinds(report), ElementsAre(Ending::Kind::hung, Ending::Kind::hung));
  EXPECT_THAT(report.waits[0], HasSubstr("1 receives from rank 1"));
  EXPECT_THAT(report.waits[0], HasSubstr("tag 9"));
}

TEST(World, StopIsAskedOfOneRank) {
  const Report report =
      simulate({.ranks = 2, .faults = {{.kind = FaultKind::stop, .rank = 1, .at = 20}}},
               [](Communicator& comm) {
                 double last = 0;
                 sum_rounds(comm, last);
                 EXPECT_EQ(stop_requested(), comm.rank() == 1);
               });
  EXPECT_EQ(report.faults.size(), 1U);
  EXPECT_FALSE(stop_requested()) << "of a thread that is no rank";
}

}  // namespace
}  // namespace espalier::simulation::world_test
