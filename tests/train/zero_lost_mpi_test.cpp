// Reduce-scatter, gather of values, gather of slices with a peer that is silent or fails: the
// others get an error with the rank and the cause, and no rank hangs.
#include <gmock/gmock.h>

#include "parallel/reduction/buckets.h"
#include "tests/parallel/flat_layout.h"
#include "tests/parallel/rank_gradients.h"
#include "tests/parallel/silent_rank.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::zero_lost_mpi_test {
namespace {

using ::testing::HasSubstr;

TEST(ZeroLost, NamesTheRankThatDoesNotTakePart) {
  on_ranks([](Communicator& comm) {
    const Layout layout = layout_of({5'000, 0, 25'000, 100});
    const Partition partition =
        make_partition(layout.parameters, layout.total, {.ranks = comm.size()});
    expect_silent_rank_named(comm, "summing gradients", [&](Communicator& part) {
      Arena arena;
      std::vector<float> flat(static_cast<size_t>(layout.total), 1.0F);
      HostBuckets buckets(part, arena);
      buckets.begin(half_step(flat_of(flat), Phases::scatter, partition));
      buckets.finish();
    });
    expect_silent_rank_named(comm, "gathering values", [&](Communicator& part) {
      Arena arena;
      std::vector<float> flat(static_cast<size_t>(layout.total), 1.0F);
      HostBuckets gather(part, arena, {}, kValueText);
      gather.begin(half_step(flat_of(flat), Phases::gather, partition));
      gather.finish();
    });
    expect_silent_rank_named(comm, "gathering slices", [&](Communicator& part) {
      std::vector<std::byte> whole(static_cast<size_t>(part.size()));
      std::vector<Range> ranges;
      for (int r = 0; r < part.size(); ++r) {
        ranges.push_back({.first = r, .count = 1});
      }
      const auto mine = std::span(whole).subspan(static_cast<size_t>(part.rank()), 1);
      gather_slices(part, {.ranges = ranges, .mine = mine, .whole = whole});
    });
  });
}

TEST(ZeroLost, APeerThatFailsAmidAGatherEndsIt) {
  if (job() != nullptr) {
    GTEST_SKIP() << "threads only";
  }
  for (const int ranks : {2, 3, 4, 7}) {
    const Layout layout = layout_of({5'000, 0, 25'000, 30'000});
    const Partition partition =
        make_partition(layout.parameters, layout.total, {.ranks = ranks, .bucket_bytes = 4});
    try {
      run_ranks(ranks, [&](Communicator& comm) {
        Arena arena;
        std::vector<float> flat(static_cast<size_t>(layout.total), 1.0F);
        HostBuckets gather(comm, arena, {}, kValueText);
        gather.begin(half_step(flat_of(flat), Phases::gather, partition));
        gather.ready(partition.ends[1]);
        if (comm.rank() == ranks - 1) {  // its slice of the last bucket is never sent
          fail("no space left on {}", "/scratch");
        }
        try {
          gather.finish();
          ADD_FAILURE() << "it cannot be done";
        } catch (const PeerLost& error) {
          EXPECT_THAT(error.what(), HasSubstr("no space left on /scratch"));
          throw;
        }
      });
      ADD_FAILURE() << "no error came out";
    } catch (const Failure& failure) {
      EXPECT_STREQ(failure.what(), "no space left on /scratch");
    }
  }
}

}  // namespace
}  // namespace espalier::parallel::zero_lost_mpi_test
