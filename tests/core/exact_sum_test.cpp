// Exact sums: right to the last bit, for any order and any distribution of the terms.
#include "src/core/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/core/error.h"
#include "src/core/rng.h"

namespace espalier::exact_sum_test {
namespace {

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) {
    sum.add(value);
  }
  return sum.value();
}

/// Numbers of all magnitudes of double.
std::vector<double> draws(uint64_t seed, size_t count) {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i) {
    const Philox bits = philox(seed, 0, i);
    const double mantissa = 1.0 + bits[0] * 0x1p-32;
    values.push_back(std::ldexp(mantissa, static_cast<int>(bits[1] % 2040) - 1060));
  }
  return values;
}

TEST(ExactSum, OneNumberComesBack) {
  for (const double x : {0.0, kSmallest, 3 * kSmallest, 0x1p-1022, 0.1, 1.0, 0x1.fffffffffffffp52,
                         1e300, kLargest}) {
    EXPECT_EQ(sum_of({x}), x);
  }
  for (const double x : draws(1, 5000)) {
    EXPECT_EQ(sum_of({x}), x);
  }
}

TEST(ExactSum, KeepsWhatDoublesWouldLose) {
  EXPECT_EQ(sum_of({0x1p60, 1, 1, 1, 1}), 0x1p60 + 4);
  std::vector<double> values(4096, 0x1p-60);
  values.push_back(0x1p-8);
  EXPECT_EQ(sum_of(values), 0x1p-8 + 0x1p-48);
  EXPECT_EQ(sum_of(std::vector<double>(size_t{1} << 20U, 0.1)), 0.1 * 0x1p20);
}

TEST(ExactSum, DependsOnNeitherOrderNorParts) {
  std::vector<double> values = draws(2, 3000);
  const double forward = sum_of(values);
  std::ranges::reverse(values);
  EXPECT_EQ(sum_of(values), forward);
  for (const size_t parts : {2U, 3U, 7U, 64U}) {
    std::array<double, ExactSum::kWords> words{};
    for (size_t part = 0; part < parts; ++part) {
      ExactSum sum;
      for (size_t i = part; i < values.size(); i += parts) {
        sum.add(values[i]);
      }
      const auto mine = sum.words();
      std::ranges::transform(words, mine, words.begin(), std::plus());
    }
    EXPECT_EQ(ExactSum::of(words).value(), forward) << parts;
  }
}

/// As kernels sum: digits with deferred carries, added in any grouping.
TEST(ExactSum, CountsOfManyAreTheSumOfAll) {
  const std::vector<double> values = draws(3, 4000);
  std::array<uint64_t, ExactSum::kWords> counts{};
  for (size_t part = 0; part < 5; ++part) {
    ExactSum sum;
    for (size_t i = part; i < values.size(); i += 5) {
      sum.add(values[i]);
    }
    sum.add_to(counts);
  }
  EXPECT_EQ(ExactSum::of(counts).value(), sum_of(values));
  EXPECT_EQ(ExactSum::of(ExactSum::of(counts).words()).value(), sum_of(values));
  for (const double strange : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const double added : {1.0, strange, 2.0}) {
      ExactSum sum;
      sum.add(added);
      sum.add_to(counts);
    }
    EXPECT_EQ(std::isnan(ExactSum::of(counts).value()), std::isnan(strange));
    EXPECT_FALSE(std::isfinite(ExactSum::of(counts).value()));
  }
}

TEST(ExactSum, WhatIsNotFiniteStaysSo) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({1, infinity, 2}), infinity);
  EXPECT_TRUE(std::isnan(sum_of({1, std::nan(""), infinity})));
  EXPECT_EQ(sum_of({kLargest, kLargest}), infinity);
  ExactSum sum;
  sum.add(std::nan(""));
  EXPECT_TRUE(std::isnan(ExactSum::of(sum.words()).value()));
  EXPECT_THROW(sum.add(-1), Bug);
}

}  // namespace
}  // namespace espalier::exact_sum_test
