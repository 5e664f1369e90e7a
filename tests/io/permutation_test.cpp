// Keyed permutations: each element once, another order for another key, and no visible bias.
#include "io/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace espalier::io::permutation_test {
namespace {

std::vector<int64_t> order_of(uint64_t key, int64_t size) {
  std::vector<int64_t> order;
  for (int64_t place = 0; place < size; ++place) {
    order.push_back(permuted(key, place, size));
  }
  return order;
}

TEST(Permutation, HasEachElementOnce) {
  for (const int64_t size : {1, 2, 3, 4, 5, 10, 16, 17, 1000, 60000, 65537}) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      std::vector<int64_t> order = order_of(key, size);
      std::ranges::sort(order);
      std::vector<int64_t> all(order.size());
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(order, all) << size;
    }
  }
}

/// These numbers fix the order permanently: a resume under a later version must continue it.
TEST(Permutation, StaysTheSameInLaterVersions) {
  EXPECT_EQ(order_of(1, 8), (std::vector<int64_t>{2, 0, 7, 5, 1, 6, 3, 4}));
  EXPECT_EQ(permuted(7, 12345, 60000), 5109);
}

/// Pearson's statistic of counts that should be equal.
double chi_square(const std::vector<int64_t>& counts) {
  const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const double expected = all / static_cast<double>(counts.size());
  double sum = 0;
  for (const int64_t count : counts) {
    const double difference = static_cast<double>(count) - expected;
    sum += difference * difference / expected;
  }
  return sum;
}

void expect_chi_square(double found, int64_t free, int64_t size) {
  const auto expected = static_cast<double>(free);
  EXPECT_NEAR(found, expected, 5 * std::sqrt(2 * expected)) << size;
}

/// Counts pairs (cell of a place, cell of its element), of cells with `cell` neighbours, over many
/// keys. With `key_distance` the element under another key takes the role of the place. Rows and
/// columns of the table have fixed sums, and a permutation's pairs exclude each other, which makes
/// the statistic size / (size - 1) times as large as that of independent pairs.
void expect_uniform(int64_t size, int64_t cell, uint64_t keys, uint64_t key_distance = 0) {
  const int64_t cells = size / cell;
  std::vector<int64_t> counts(static_cast<size_t>(cells * cells));
  for (uint64_t key = 0; key < keys; ++key) {
    for (int64_t place = 0; place < size; ++place) {
      const int64_t row = key_distance == 0 ? place : permuted(key + key_distance, place, size);
      ++counts[row / cell * cells + permuted(key, place, size) / cell];
    }
  }
  const double excluded = static_cast<double>(size - 1) / static_cast<double>(size);
  expect_chi_square(chi_square(counts) * excluded, (cells - 1) * (cells - 1), size);
}

TEST(Permutation, PutsEachElementAnywhere) {
  expect_uniform(2, 1, 20000);
  expect_uniform(3, 1, 20000);
  expect_uniform(10, 1, 20000);
  expect_uniform(50, 1, 2000);
  expect_uniform(1000, 25, 200);
  expect_uniform(60000, 600, 3);
}

TEST(Permutation, OrdersOfTwoKeysAreIndependent) {
  expect_uniform(10, 1, 20000, 1);
  expect_uniform(1000, 25, 200, 1);
}

/// Neighbours do not stay neighbours.
TEST(Permutation, DistancesOfNeighboursAreUniform) {
  constexpr int64_t kSize = 60000;
  constexpr int64_t kCells = 100;
  std::vector<int64_t> counts(kCells);
  for (int64_t place = 0; place + 1 < kSize; ++place) {
    const int64_t distance =
        (permuted(3, place + 1, kSize) - permuted(3, place, kSize) + kSize) % kSize;
    ++counts[distance * kCells / kSize];
  }
  expect_chi_square(chi_square(counts), kCells - 1, kSize);
}

}  // namespace
}  // namespace espalier::io::permutation_test
