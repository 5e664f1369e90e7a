// ZeRO-1's communication: sums of the owned slices have the bits of the all-reduce, and the values
// of all slices are gathered; for any element type, size, slices and order of calls.
// With a peer that is silent or fails the others get an error with the rank and the cause.
#include <gmock/gmock.h>

#include <chrono>
#include <limits>
#include <thread>

#include "parallel/reduction/buckets.h"
#include "parallel/reduction/sra.h"
#include "src/core/trace.h"
#include "tests/parallel/flat_layout.h"
#include "tests/parallel/rank_gradients.h"
#include "tests/parallel/silent_rank.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::zero_sums_mpi_test {
namespace {

using ::testing::HasSubstr;

// Parameters of very different sizes. The last one has fewer elements than ranks in some worlds,
// and no whole block.
const std::vector<Layout> kLayouts{layout_of({3, 4'997, 0, 1, 25'000, 100, 14'900, 16'234}),
                                   layout_of({70'001}), layout_of({256, 256, 256}), layout_of({1})};

template <class T>
std::vector<T> owned_part(const std::vector<T>& flat, const Partition& partition, int rank) {
  std::vector<T> part;
  for (size_t b = 0; b < partition.buckets(); ++b) {
    const Range slice = partition.slice(b, rank);
    part.insert(part.end(), flat.begin() + slice.first, flat.begin() + slice.end());
  }
  return part;
}

/// A pure function in place of an optimizer step, so that every rank can check the result.
template <class T>
T stepped(T sum) {
  return from_float<T>(to_float(sum) * 0.5F + 1.0F);
}

/// Backward fills the gradient step by step, at a different pace on every rank.
template <class T>
void reduce_as_backward_does(Communicator& comm, HostBuckets& buckets, const Layout& layout,
                             int step, std::vector<T>& flat) {
  const std::vector<T> gradient = values_of<T>(comm.rank(), step, layout.total);
  int64_t begin = 0;
  for (size_t p = 0; p < layout.parameters.size(); ++p) {
    const bool last = p + 1 == layout.parameters.size();
    const int64_t end = last ? layout.total : layout.parameters[p + 1].offset;
    std::copy(gradient.begin() + begin, gradient.begin() + end, flat.begin() + begin);
    begin = end;
    if ((end + comm.rank()) % 3 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    if ((end + step) % 2 == 0 || p % 2 == 0) {
      buckets.ready(end);
    }
  }
  buckets.finish();
}

template <class T>
void one_step_is_that_of_the_all_reduce(Communicator& comm, const Layout& layout,
                                        const BucketOptions& options, size_t bucket_bytes) {
  const T garbage = from_float<T>(std::numeric_limits<float>::quiet_NaN());
  Arena arena;
  HostBuckets buckets(comm, arena, options);
  HostBuckets gather(comm, arena, options, kValueText);
  const Partition partition = make_partition(
      layout.parameters, layout.total,
      {.ranks = comm.size(), .bucket_bytes = bucket_bytes, .element_bytes = sizeof(T)});
  for (int step = 0; step < 3; ++step) {
    std::vector<T> flat(static_cast<size_t>(layout.total), garbage);
    buckets.begin(half_step(flat_of(flat), Phases::scatter, partition));
    reduce_as_backward_does(comm, buckets, layout, step, flat);
    const std::vector<T> expected = expected_of<T>(comm.size(), step, layout.total);
    EXPECT_TRUE(same_bits(owned_part(flat, partition, comm.rank()),
                          owned_part(expected, partition, comm.rank())));

    std::vector<T> value(flat.size(), garbage);
    gather.begin(half_step(flat_of(value), Phases::gather, partition));
    for (size_t b = 0; b < partition.buckets(); ++b) {
      const Range slice = partition.slice(b, comm.rank());
      std::transform(flat.begin() + slice.first, flat.begin() + slice.end(),
                     value.begin() + slice.first, stepped<T>);
      if ((b + static_cast<size_t>(comm.rank())) % 3 != 2) {
        gather.ready(partition.ends[b]);
      }
    }
    gather.finish();
    std::vector<T> all(expected.size());
    std::ranges::transform(expected, all.begin(), stepped<T>);
    EXPECT_TRUE(same_bits(value, all)) << "step " << step;
  }
}

TEST(ZeroSums, AStepHasTheBitsOfTheAllReduce) {
  on_ranks([](Communicator& comm) {
    for (const Layout& layout : kLayouts) {
      for (const bool overlap : {true, false}) {
        for (const size_t bytes : {size_t{4}, size_t{20'000}, size_t{1} << 30U}) {
          const BucketOptions options{.overlap = overlap};
          one_step_is_that_of_the_all_reduce<float>(comm, layout, options, bytes);
          one_step_is_that_of_the_all_reduce<bf16>(comm, layout, options, bytes);
        }
      }
    }
  });
}

TEST(ZeroSums, SlicesOfAnyLengths) {
  // One rank owns nearly all elements, others none; the owner changes.
  on_ranks([](Communicator& comm) {
    Arena arena;
    SraReduction reduction(comm, arena, {.piece_bytes = 4096, .staging_bytes = 64 << 10});
    const auto width = static_cast<size_t>(comm.size()) + 1;
    for (const int64_t count : {1, 5, 1'000, 60'001}) {
      for (int owner = 0; owner < comm.size(); ++owner) {
        std::vector<int64_t> edges(width, 0);
        for (size_t r = 0; r < width; ++r) {
          edges[r] = static_cast<int>(r) <= owner
                         ? std::min<int64_t>(count, static_cast<int64_t>(r))
                         : count;
        }
        const Range mine{.first = edges[comm.rank()],
                         .count = edges[comm.rank() + 1] - edges[comm.rank()]};
        const std::vector<float> expected = expected_sum(comm.size(), owner, count);
        std::vector<float> flat = values(comm.rank(), owner, count);
        const auto part = [&](const std::vector<float>& x) {
          return std::span(x).subspan(static_cast<size_t>(mine.first),
                                      static_cast<size_t>(mine.count));
        };
        for (const Phases phases : {Phases::scatter, Phases::gather}) {
          reduction.start({.data = flat_of(flat), .phases = phases, .edges = edges, .number = 7});
          reduction.wait();
          EXPECT_TRUE(same_bits(part(flat), part(expected)));
        }
        EXPECT_TRUE(same_bits(flat, expected));

        std::vector<float> both = values(comm.rank(), owner, count);
        reduction.start({.data = flat_of(both), .edges = edges});
        reduction.wait();
        EXPECT_TRUE(same_bits(both, expected));
      }
    }
  });
}

TEST(ZeroSums, SendsTheBytesOfTheFormulaAndNeedsLittleMemory) {
  on_ranks([](Communicator& comm) {
    constexpr int64_t kCount = 1'000'000;
    const std::vector<FlatParameter> parameters{{.offset = 0, .kept = kCount}};
    const Partition partition =
        make_partition(parameters, kCount, {.ranks = comm.size(), .element_bytes = 2});
    Arena arena;
    HostBuckets buckets(comm, arena);
    HostBuckets gather(comm, arena, {}, kValueText);
    std::vector<bf16> flat = values_of<bf16>(comm.rank(), 1, kCount);
    const auto sent_by_all = [&](const auto& run) {
      const int64_t before = comm.sent(Traffic::allreduce).bytes;
      run();
      auto bytes = static_cast<double>(comm.sent(Traffic::allreduce).bytes - before);
      all_reduce_small(comm, {&bytes, 1}, Combine::sum);
      return bytes;
    };
    const double once = 2.0 * (comm.size() - 1) * kCount;
    EXPECT_EQ(sent_by_all([&] {
                buckets.begin(half_step(flat_of(flat), Phases::scatter, partition));
                buckets.finish();
              }),
              once);
    const size_t staging = arena.use(Memory::communication).peak;
    EXPECT_LE(staging, PieceOptions{}.staging_bytes);
    EXPECT_EQ(sent_by_all([&] {
                gather.begin(half_step(flat_of(flat), Phases::gather, partition));
                gather.finish();
              }),
              once);
    EXPECT_EQ(arena.use(Memory::communication).peak, staging) << "gathering needs none";
    EXPECT_TRUE(same_bits(flat, expected_of<bf16>(comm.size(), 1, kCount)));
  });
}

TEST(ZeroSums, TheNextBackwardMayBeginWhileAPeerStillGathers) {
  // Steps follow each other without a barrier; ranks drift apart as far as messages permit.
  on_ranks([](Communicator& comm) {
    const Layout& layout = kLayouts[0];
    Arena arena;
    const BucketOptions options{.in_flight = 3};
    HostBuckets buckets(comm, arena, options);
    HostBuckets gather(comm, arena, options, kValueText);
    const Partition partition = make_partition(layout.parameters, layout.total,
                                               {.ranks = comm.size(), .bucket_bytes = 4'000});
    for (int step = 0; step < 20; ++step) {
      std::vector<float> flat = values(comm.rank(), step, layout.total);
      buckets.begin(half_step(flat_of(flat), Phases::scatter, partition));
      buckets.finish();
      if (step % comm.size() == comm.rank()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      gather.begin(half_step(flat_of(flat), Phases::gather, partition));
      gather.finish();
      EXPECT_TRUE(same_bits(flat, expected_sum(comm.size(), step, layout.total)));
    }
  });
}

TEST(ZeroSums, AloneItDoesNothing) {
  const auto self = self_communicator();
  const Layout& layout = kLayouts[0];
  const Partition partition = make_partition(layout.parameters, layout.total, {});
  Arena arena;
  HostBuckets buckets(*self, arena);
  HostBuckets gather(*self, arena, {}, kValueText);
  std::vector<float> flat = values(0, 0, layout.total);
  buckets.begin(half_step(flat_of(flat), Phases::scatter, partition));
  buckets.ready(100);
  buckets.finish();
  gather.begin(half_step(flat_of(flat), Phases::gather, partition));
  gather.ready(partition.ends[0]);
  gather.finish();
  EXPECT_TRUE(same_bits(flat, values(0, 0, layout.total)));
  EXPECT_EQ(self->sent().messages, 0);
  EXPECT_EQ(arena.total().peak, 0U);
}

TEST(ZeroSums, NothingToReduce) {
  on_ranks([](Communicator& comm) {
    const Partition partition = make_partition({}, 0, {.ranks = comm.size()});
    Arena arena;
    HostBuckets buckets(comm, arena);
    HostBuckets gather(comm, arena, {}, kValueText);
    const int64_t before = comm.sent().messages;
    buckets.begin(half_step(Tensor{}, Phases::scatter, partition));
    buckets.finish();
    gather.begin(half_step(Tensor{}, Phases::gather, partition));
    gather.finish();
    EXPECT_EQ(comm.sent().messages, before);
  });
}

TEST(ZeroSums, OneSpanForEachBucketThatDoNotOverlap) {
  on_ranks([](Communicator& comm) {
    if (comm.size() == 1) {
      return;
    }
    const Layout& layout = kLayouts[0];
    const Partition partition =
        make_partition(layout.parameters, layout.total, {.ranks = comm.size(), .bucket_bytes = 4});
    Trace trace;
    Trace* previous = Trace::install(&trace);
    Arena arena;
    HostBuckets gather(comm, arena, {}, kValueText);
    std::vector<float> flat = values(comm.rank(), 0, layout.total);
    gather.begin(half_step(flat_of(flat), Phases::gather, partition));
    gather.finish();
    Trace::install(previous);
    ASSERT_EQ(trace.events().size(), partition.buckets());
    double last = 0;
    for (const TraceEvent& event : trace.events()) {
      EXPECT_THAT(event.name, HasSubstr("gather "));
      EXPECT_GE(event.begin, last);
      last = event.end;
    }
  });
}

TEST(ZeroSums, RefusesMismatchedSizes) {
  on_ranks([](Communicator& comm) {
    const Layout& layout = kLayouts[0];
    Arena arena;
    HostBuckets gather(comm, arena, {}, kValueText);
    HostBuckets buckets(comm, arena);
    std::vector<float> flat(static_cast<size_t>(layout.total));
    std::vector<float> shorter(static_cast<size_t>(layout.total - 1));
    const Partition partition =
        make_partition(layout.parameters, layout.total, {.ranks = comm.size()});
    const Partition other =
        make_partition(layout.parameters, layout.total, {.ranks = comm.size() + 1});
    EXPECT_THROW(gather.begin(half_step(flat_of(flat), Phases::gather, other)), Bug);
    EXPECT_THROW(buckets.begin(half_step(flat_of(shorter), Phases::scatter, partition)), Bug);
    gather.begin(half_step(flat_of(flat), Phases::gather, partition));
    EXPECT_THROW(gather.ready(layout.total + 1), Bug);
    gather.finish();
  });
}

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
}  // namespace espalier::parallel::zero_sums_mpi_test
