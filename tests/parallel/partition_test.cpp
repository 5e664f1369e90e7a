// ZeRO-1's partition of the flat array: complete, balanced, with whole blocks, for all sizes.
#include <algorithm>
#include <array>
#include <cmath>

#include "parallel/partition.h"
#include "src/core/error.h"
#include "src/core/rng.h"
#include "tests/parallel/flat_layout.h"
#include "tests/support/matchers.h"

namespace espalier::parallel::partition_test {
namespace {

using ::testing::ElementsAreArray;

std::vector<Range> owned_by(const Partition& cut, const Layout& layout, int rank) {
  std::vector<Range> owned;
  for (const FlatParameter& parameter : layout.parameters) {
    owned.push_back(cut.owned(parameter, rank));
  }
  return owned;
}

/// Checks every guarantee of partition.h on a layout.
void check_promises(const Layout& layout, const PartitionOptions& options) {
  const Partition cut = make_partition(layout.parameters, layout.total, options);
  ASSERT_EQ(cut.ends.empty(), layout.total == 0);
  ASSERT_EQ(cut.edges.size(), cut.buckets() * static_cast<size_t>(options.ranks + 1));
  const auto least = static_cast<int64_t>(options.bucket_bytes / options.element_bytes);
  const int64_t slack = options.block + 16;  // one block and the padding
  int64_t begin = 0;
  for (size_t b = 0; b < cut.buckets(); ++b) {
    const auto edges = cut.edges_of(b);
    EXPECT_EQ(edges.front(), begin);
    EXPECT_EQ(edges.back(), cut.ends[b]);
    EXPECT_TRUE(std::ranges::is_sorted(edges));
    EXPECT_TRUE(b + 1 == cut.buckets() || cut.ends[b] - begin >= least);
    const double even = static_cast<double>(cut.ends[b] - begin) / options.ranks;
    for (int r = 0; r < options.ranks; ++r) {
      EXPECT_LE(std::abs(static_cast<double>(cut.slice(b, r).count) - even), slack);
      EXPECT_EQ(cut.slice(b, r).first, edges[r]);
    }
    begin = cut.ends[b];
  }
  EXPECT_EQ(begin, layout.total);

  std::vector<int64_t> reached(layout.parameters.size(), 0);  // kept elements owned by ranks so far
  for (int r = 0; r < options.ranks; ++r) {
    const std::vector<Range> owned = owned_by(cut, layout, r);
    for (size_t p = 0; p < owned.size(); ++p) {
      if (owned[p].count == 0) {
        EXPECT_EQ(owned[p], Range{});
        continue;
      }
      EXPECT_EQ(owned[p].first, reached[p]) << "the next range begins where the last ended";
      EXPECT_EQ(owned[p].first % options.block, 0);
      reached[p] = owned[p].end();
      // The slice of the summed gradient covers it.
      const FlatParameter& parameter = layout.parameters[p];
      const Range slice = cut.slice(cut.bucket_of(parameter.offset), r);
      EXPECT_GE(parameter.offset + owned[p].first, slice.first);
      EXPECT_LE(parameter.offset + owned[p].end(), slice.end());
    }
  }
  for (size_t p = 0; p < reached.size(); ++p) {
    EXPECT_EQ(reached[p], layout.parameters[p].kept) << "parameter " << p;
  }
}

TEST(Partition, OneBucketByHand) {
  // 1000 elements padded to 1008, cut in three: near 336 and 672, at multiples of 256.
  const Layout layout = layout_of({1000});
  const Partition cut = make_partition(layout.parameters, layout.total, {.ranks = 3});
  EXPECT_THAT(cut.ends, ElementsAre(1008));
  EXPECT_THAT(cut.edges, ElementsAre(0, 256, 768, 1008));
  EXPECT_THAT(owned_by(cut, layout, 2), ElementsAre(Range{768, 232}));
}

TEST(Partition, BucketsAreWholeParameters) {
  const Layout layout = layout_of({600, 40, 600, 0, 1200, 8});
  // Offsets 0, 608, 656, 1264, 1264, 2464; the array ends at 2480.
  const Partition cut =
      make_partition(layout.parameters, layout.total,
                     {.ranks = 2, .bucket_bytes = 2 * 640, .element_bytes = 2, .block = 256});
  EXPECT_THAT(cut.ends, ElementsAre(656, 2464, 2480));
  EXPECT_THAT(cut.edges, ElementsAreArray({0, 256, 656, 656, 1520, 2464, 2464, 2464, 2480}));
  EXPECT_EQ(cut.bucket_of(0), 0U);
  EXPECT_EQ(cut.bucket_of(655), 0U);
  EXPECT_EQ(cut.bucket_of(656), 1U);
  EXPECT_EQ(cut.bucket_of(2479), 2U);
  EXPECT_THROW(cut.bucket_of(2480), Bug);
  EXPECT_THAT(owned_by(cut, layout, 1), ElementsAre(Range{256, 344}, Range{0, 40}, Range{}, Range{},
                                                    Range{256, 944}, Range{0, 8}));
}

TEST(Partition, MoreRanksThanBlocks) {
  const Layout layout = layout_of({300, 1});
  const Partition cut = make_partition(layout.parameters, layout.total, {.ranks = 64});
  int owners = 0;
  for (int r = 0; r < 64; ++r) {
    owners += cut.slice(0, r).count > 0 ? 1 : 0;
  }
  EXPECT_EQ(owners, 3);  // two blocks and a small parameter
  check_promises(layout, {.ranks = 64});
}

TEST(Partition, OfNothing) {
  const Partition cut = make_partition({}, 0, {.ranks = 3});
  EXPECT_EQ(cut.buckets(), 0U);
  check_promises(layout_of({0, 0}), {.ranks = 3});
  EXPECT_THROW(cut.bucket_of(0), Bug);
}

TEST(Partition, KeepsItsPromisesForAnySizes) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    uint64_t drawn = 0;
    const auto draw = [&](uint64_t below) {
      return static_cast<int64_t>(mix(mix(seed, 5), drawn++) % below);
    };
    Layout layout;
    const int64_t count = 1 + draw(40);
    for (int64_t i = 0; i < count; ++i) {
      const std::array<int64_t, 6> sizes{0, 1, draw(20), draw(600), draw(5'000), draw(100'000)};
      layout.add(sizes[draw(sizes.size())]);
    }
    for (const int ranks : {1, 2, 3, 4, 7, 64, 1000}) {
      SCOPED_TRACE(fmt::format("seed {}, {} ranks", seed, ranks));
      check_promises(layout, {.ranks = ranks,
                              .bucket_bytes = static_cast<size_t>(draw(200'000)),
                              .element_bytes = static_cast<size_t>(2 + 2 * draw(2)),
                              .block = draw(2) == 0 ? 256 : 1 + draw(300)});
    }
  }
}

TEST(Partition, OfBillionsIsBalancedToABlock) {
  // 100 billion dense parameters at 90 %: numbers beyond 32 bits, many ranks.
  Layout layout;
  for (int i = 0; i < 96; ++i) {
    layout.add(104'857'601);
  }
  const Partition cut = make_partition(layout.parameters, layout.total, {.ranks = 4096});
  std::vector<int64_t> held(4096, 0);
  for (size_t b = 0; b < cut.buckets(); ++b) {
    for (int r = 0; r < 4096; ++r) {
      held[r] += cut.slice(b, r).count;
    }
  }
  const auto [least, most] = std::ranges::minmax(held);
  EXPECT_LE(static_cast<double>(most), 1.01 * static_cast<double>(least));
}

TEST(Partition, RefusesParametersOutOfOrder) {
  const std::vector<FlatParameter> overlapping{{.offset = 0, .kept = 20},
                                               {.offset = 16, .kept = 5}};
  EXPECT_THROW(make_partition(overlapping, 100, {}), Bug);
  const std::vector<FlatParameter> beyond{{.offset = 0, .kept = 20}};
  EXPECT_THROW(make_partition(beyond, 19, {}), Bug);
  EXPECT_THROW(make_partition(beyond, 32, {.ranks = 0}), Bug);
  EXPECT_THROW(make_partition(beyond, 32, {.block = 0}), Bug);
}

}  // namespace
}  // namespace espalier::parallel::partition_test
