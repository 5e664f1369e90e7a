// Gradient buckets: boundaries, start times, and results with unchanged bits.
#include <chrono>
#include <limits>
#include <thread>

#include "parallel/flat.h"
#include "parallel/reduction/buckets.h"
#include "src/core/trace.h"
#include "src/kernels/backend.h"
#include "tests/parallel/rank_gradients.h"
#include "tests/support/matchers.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::bucketer_mpi_test {
namespace {

// Boundaries of parameters of very different sizes.
const std::vector<int64_t> kBoundaries{3, 5'000, 5'000, 5'001, 30'000, 30'100, 45'000, 61'234};

TEST(Buckets, AreCutAtParametersAndNotTooSmall) {
  on_ranks(
      [](Communicator& comm) {
        Arena arena;
        HostBuckets buckets(comm, arena);
        constexpr size_t kBytes = 4 * 5'001;
        std::vector<float> flat = values(comm.rank(), 0, 61'234);
        buckets.begin(all_reduce_step(flat_of(flat), kBoundaries, kBytes));
        if (comm.size() == 1) {
          EXPECT_TRUE(buckets.step().ends.empty());
        } else {
          EXPECT_THAT(buckets.step().ends, ElementsAre(5'001, 30'000, 45'000, 61'234));
        }
        if (comm.size() > 1) {
          EXPECT_THROW(buckets.begin(all_reduce_step(flat_of(flat), kBoundaries, kBytes)), Bug)
              << "the step is not finished";
        }
        buckets.ready(5'000);
        EXPECT_THROW(buckets.ready(4'999), Bug) << "what is final stays final";
        buckets.finish();
        EXPECT_TRUE(same_bits(flat, expected_sum(comm.size(), 0, 61'234)));
      },
      {.timeout = 60});
}

TEST(Buckets, SumTheSameWheneverTheyAreReady) {
  on_ranks([](Communicator& comm) {
    for (const bool overlap : {true, false}) {
      for (const size_t bytes : {size_t{4}, size_t{20'000}, size_t{1} << 30U}) {
        Arena arena;
        HostBuckets buckets(comm, arena, {.overlap = overlap});
        for (int step = 0; step < 3; ++step) {
          const std::vector<float> gradient = values(comm.rank(), step, 61'234);
          std::vector<float> flat(gradient.size(), std::numeric_limits<float>::quiet_NaN());
          buckets.begin(all_reduce_step(flat_of(flat), kBoundaries, bytes));
          int64_t begin = 0;
          for (const int64_t end : kBoundaries) {  // backward fills the gradient step by step
            std::copy(gradient.begin() + begin, gradient.begin() + end, flat.begin() + begin);
            begin = end;
            if ((end + comm.rank()) % 3 == 0) {
              std::this_thread::sleep_for(std::chrono::microseconds(300));
            }
            if ((end + step) % 2 == 0) {
              buckets.ready(end);
            }
          }
          buckets.finish();
          EXPECT_TRUE(same_bits(flat, expected_sum(comm.size(), step, 61'234)));
        }
      }
    }
  });
}

TEST(Buckets, OneRankSendsNothing) {
  const auto self = self_communicator();
  Arena arena;
  HostBuckets buckets(*self, arena);
  std::vector<float> flat = values(0, 0, 1000);
  buckets.begin(all_reduce_step(flat_of(flat), {}));
  buckets.ready(500);
  buckets.finish();
  EXPECT_TRUE(same_bits(flat, values(0, 0, 1000)));
  EXPECT_EQ(self->sent().messages, 0);
  EXPECT_EQ(arena.total().peak, 0U);
}

TEST(Buckets, EmptyGradient) {
  on_ranks([](Communicator& comm) {
    Arena arena;
    HostBuckets buckets(comm, arena);
    const int64_t before = comm.sent().messages;
    buckets.begin(all_reduce_step(Tensor{}, {}));
    buckets.ready(0);
    buckets.finish();
    EXPECT_EQ(comm.sent().messages, before);
  });
}

TEST(Buckets, TraceOneSpanEachThatDoNotOverlap) {
  on_ranks([](Communicator& comm) {
    Trace trace;
    Trace* previous = Trace::install(&trace);
    Arena arena;
    HostBuckets buckets(comm, arena);
    std::vector<float> flat = values(comm.rank(), 0, 61'234);
    buckets.begin(all_reduce_step(flat_of(flat), kBoundaries, 4));
    buckets.finish();
    Trace::install(previous);
    ASSERT_EQ(trace.events().size(), buckets.step().ends.size());
    EXPECT_EQ(trace.events().size(), comm.size() == 1 ? 0U : 7U);
    double last = 0;
    for (const TraceEvent& event : trace.events()) {
      EXPECT_EQ(event.track, Track::allreduce);
      EXPECT_GE(event.begin, last);
      EXPECT_GE(event.end, event.begin);
      last = event.end;
    }
  });
}

TEST(Buckets, RunAnyReduction) {
  on_ranks([](Communicator& comm) {
    Arena arena;
    Stream stream(arena, 1);
    Wire wire(kernels::by_name("cpu"), stream, {{.first = 0, .count = 61'234}});
    HostBuckets buckets(comm, arena, {.in_flight = 1, .reduction = "all-to-all"});
    std::vector<float> flat = values(comm.rank(), 0, 61'234);
    const int64_t before = comm.sent().bytes;
    buckets.begin(all_reduce_step(flat_of(flat), kBoundaries, 4, {.wire = &wire}));
    buckets.ready(40'000);
    buckets.finish();
    EXPECT_TRUE(same_bits(flat, expected_sum(comm.size(), 0, 61'234)));
    EXPECT_EQ(comm.sent().bytes - before, 61'234 * 4 * (comm.size() - 1));
  });
}

}  // namespace
}  // namespace espalier::parallel::bucketer_mpi_test
