// Small collectives, digests, and the grid of ranks.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "parallel/grid.h"
#include "parallel/transport/digest.h"
#include "tests/parallel/rank_messages.h"
#include "tests/support/failure.h"
#include "tests/support/ranks.h"

namespace espalier::parallel::collectives_mpi_test {
namespace {

TEST(Collectives, BarrierWaitsForTheLast) {
  on_ranks([](Communicator& comm) {
    for (int last = 0; last < comm.size(); ++last) {
      if (comm.rank() == last) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
      const int64_t arrived = now();
      barrier(comm);
      const int64_t left = now();
      std::vector<int64_t> all(static_cast<size_t>(comm.size()));
      all_gather(comm, bytes_of(arrived), std::as_writable_bytes(std::span(all)));
      EXPECT_GE(left, *std::ranges::max_element(all));
    }
  });
}

TEST(Collectives, Broadcast) {
  on_ranks([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      for (const size_t size : kSizes) {
        const auto expected = content(root, root, size);
        std::vector<std::byte> data = comm.rank() == root ? expected : std::vector<std::byte>(size);
        broadcast(comm, root, data);
        EXPECT_EQ(data, expected);
      }
    }
  });
}

TEST(Collectives, GatherToAllAndToOne) {
  on_ranks([](Communicator& comm) {
    for (const size_t size : kSizes) {
      const auto mine = content(comm.rank(), 7, size);
      std::vector<std::byte> all(size * static_cast<size_t>(comm.size()));
      all_gather(comm, mine, all);
      std::vector<std::byte> expected;
      for (int r = 0; r < comm.size(); ++r) {
        const auto part = content(r, 7, size);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      EXPECT_EQ(all, expected);

      const auto longer = content(comm.rank(), 8, size * static_cast<size_t>(comm.rank()));
      const auto gathered = gather(comm, longer);
      ASSERT_EQ(gathered.size(), comm.rank() == 0 ? static_cast<size_t>(comm.size()) : 0U);
      for (size_t r = 0; r < gathered.size(); ++r) {
        EXPECT_EQ(gathered[r], content(static_cast<int>(r), 8, size * r));
      }
    }
  });
}

/// Ranges of very unequal sizes, in descending order of ranks, with a gap after every second one.
std::vector<Range> uneven_ranges(int ranks, int64_t size) {
  std::vector<Range> ranges(static_cast<size_t>(ranks));
  int64_t at = 3;
  for (int r = ranks; r-- > 0;) {
    ranges[r] = {.first = at, .count = r % 3 == 1 ? 0 : size / (r + 1)};
    at = ranges[r].end() + r % 2;
  }
  return ranges;
}

TEST(Collectives, GatherSlices) {
  on_ranks([](Communicator& comm) {
    for (const size_t size : kSizes) {
      const std::vector<Range> ranges = uneven_ranges(comm.size(), static_cast<int64_t>(size));
      const auto total = static_cast<size_t>(ranges[0].end() + 5);
      std::vector<std::byte> expected(total,
                                      std::byte{0xee});  // elements of no rank stay unchanged
      for (int r = 0; r < comm.size(); ++r) {
        std::ranges::copy(content(r, 9, static_cast<size_t>(ranges[r].count)),
                          expected.begin() + ranges[r].first);
      }
      const Range my_range = ranges[comm.rank()];
      const auto mine = content(comm.rank(), 9, static_cast<size_t>(my_range.count));
      std::vector<std::byte> whole(total, std::byte{0xee});
      gather_slices(comm, {.ranges = ranges, .mine = mine, .whole = whole});
      EXPECT_EQ(whole, expected);

      std::vector<std::byte> root(comm.rank() == 0 ? total : 0, std::byte{0xee});
      const int64_t before = comm.sent().bytes;
      gather_slices(comm, {.ranges = ranges, .mine = mine, .whole = root, .everywhere = false});
      EXPECT_EQ(comm.sent().bytes - before, comm.rank() == 0 ? 0 : my_range.count);
      EXPECT_TRUE(comm.rank() != 0 || root == expected);

      // In place: a rank's part is already at its position.
      std::vector<std::byte> same(total, std::byte{0xee});
      std::ranges::copy(mine, same.begin() + my_range.first);
      const auto place = std::span(same).subspan(static_cast<size_t>(my_range.first), mine.size());
      gather_slices(comm, {.ranges = ranges, .mine = place, .whole = same});
      EXPECT_EQ(same, expected);
    }
  });
}

TEST(Collectives, GatherSlicesRefusesRangesOutsideTheArray) {
  on_ranks([](Communicator& comm) {
    std::vector<std::byte> whole(10);
    const std::vector<Range> beyond(static_cast<size_t>(comm.size()), {.first = 8, .count = 3});
    const auto mine = std::span(whole).first(3);
    EXPECT_THROW(gather_slices(comm, {.ranges = beyond, .mine = mine, .whole = whole}), Bug);
    EXPECT_THROW(gather_slices(comm, {.ranges = beyond, .mine = whole, .whole = whole}), Bug);
    EXPECT_THROW(gather_slices(comm, {.ranges = {}, .mine = {}, .whole = whole}), Bug);
  });
}

TEST(Collectives, SmallSumsAndMaximaInRankOrder) {
  on_ranks([](Communicator& comm) {
    const auto value = [](int rank, int i) {
      return std::ldexp(1.0 / (3 + rank + 7 * i), 9 * rank);
    };
    std::vector<double> sum{value(comm.rank(), 0), value(comm.rank(), 1)};
    std::vector<double> max = sum;
    all_reduce_small(comm, sum, Combine::sum);
    all_reduce_small(comm, max, Combine::max);
    for (int i = 0; i < 2; ++i) {
      double expected = value(0, i);
      for (int r = 1; r < comm.size(); ++r) {
        expected += value(r, i);
      }
      EXPECT_EQ(sum[i], expected);
      EXPECT_EQ(max[i], value(comm.size() - 1, i));
    }
    std::vector<double> nan{comm.rank() == comm.size() / 2 ? std::nan("") : 1.0,
                            -5.0 - comm.rank()};
    all_reduce_small(comm, nan, Combine::max);
    EXPECT_TRUE(std::isnan(nan[0]));
    EXPECT_EQ(nan[1], -5.0);
    all_reduce_small(comm, {}, Combine::sum);
  });
}

TEST(Digest, NamesTheEntryAndTheRanksThatDiffer) {
  on_ranks([](Communicator& comm) {
    const std::vector<std::string> names{"wte", "h.0.attn", "h.0.mlp", "ln_f"};
    std::vector<uint64_t> digests{11, 22, 33, 44};
    const int64_t before = comm.sent().bytes;
    compare_digests(comm, names, digests);
    EXPECT_EQ(comm.sent().bytes - before, 16 * (comm.size() - 1)) << "cheap when all agree";
    if (comm.size() < 3) {
      return;
    }
    const int odd = comm.size() / 2;
    if (comm.rank() == odd) {
      digests = {11, 22, 34, 45};
    }
    EXPECT_THAT(failure_of([&] { compare_digests(comm, names, digests); }),
                AllOf(HasSubstr("'h.0.mlp'"), HasSubstr(fmt::format("on rank {})", odd))));
    const std::span<const uint64_t> shorter(digests.data(), comm.rank() == 0 ? 3 : 4);
    EXPECT_THROW(compare_digests(comm, std::span(names).first(shorter.size()), shorter), Failure);
  });
}

TEST(Grid, PlacesAndRanksAreInverse) {
  constexpr Grid kGrid{.pipeline = 3, .data = 4};
  static_assert(kGrid.ranks() == 12 && kGrid.place_of(5) == GridPlace{1, 1});
  constexpr Grid kByStages{.pipeline = 3, .data = 4, .order = RankOrder::stages_first};
  static_assert(kByStages.place_of(5) == GridPlace{2, 1});
  for (int rank = 0; rank < 12; ++rank) {
    EXPECT_EQ(make_grid(12, 3).rank_of(kGrid.place_of(rank)), rank);
    EXPECT_EQ(make_grid(12, 3, RankOrder::stages_first).rank_of(kByStages.place_of(rank)), rank);
  }
  for (const RankOrder order : {RankOrder::replicas_first, RankOrder::stages_first}) {
    EXPECT_EQ(rank_order_by_name(name_of(order)), order);
  }
  EXPECT_THROW(rank_order_by_name("stages"), Failure);
  EXPECT_EQ(describe(make_grid(4, 2), std::vector<int>{0, 0, 1, 1}),
            "node 0: rank 0 (stage 0, replica 0), rank 1 (stage 0, replica 1)\n"
            "node 1: rank 2 (stage 1, replica 0), rank 3 (stage 1, replica 1)\n");
  EXPECT_THROW(make_grid(5, 2), Failure);
  EXPECT_THROW(make_grid(2, 0), Failure);
  EXPECT_THROW(make_grid(2, 4), Failure);
}

}  // namespace
}  // namespace espalier::parallel::collectives_mpi_test
