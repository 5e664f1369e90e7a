// Random rounding: probabilities by counting all draws, and values that stay unchanged.
#include "src/kernels/rules/master.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace espalier::random_rounding_test {
namespace {

using kernels::round_at_random;

/// Neighbours of a positive number, by bits.
template <class Half>
Half below(float w) {
  const Half half = from_float<Half>(w);
  return to_float(half) > w ? Half{static_cast<uint16_t>(half.bits - 1)} : half;
}

/// Number of the 2^bits draws that round up; all others round to the neighbour below. Both signs.
template <class Half>
int64_t ups(float w, int bits) {
  const Half low = below<Half>(w);
  int64_t count = 0;
  for (uint64_t draw = 0; draw < uint64_t{1} << bits; ++draw) {
    const auto word = static_cast<uint32_t>(draw << (32 - bits));
    const Half got = round_at_random<Half>(w, word);
    const int up = got.bits - low.bits;
    EXPECT_TRUE(up == 0 || up == 1) << w << " " << draw;
    EXPECT_EQ(round_at_random<Half>(-w, word).bits, got.bits | 0x8000);
    count += up;
  }
  return count;
}

/// The distance to the neighbour below in units of the last place, times 2^bits.
template <class Half>
double want(float w, int bits) {
  const Half low = below<Half>(w);
  const Half high{static_cast<uint16_t>(low.bits + 1)};
  const double unit = static_cast<double>(to_float(high)) - static_cast<double>(to_float(low));
  return std::ldexp((static_cast<double>(w) - static_cast<double>(to_float(low))) / unit, bits);
}

TEST(RandomRounding, GoesUpWithTheProbabilityOfTheDistance) {
  for (const float w : {1.0F, 1.0F + 0x1p-23F, 1.7F, 3.14159F, 1e-30F, 0x1p-130F * 1.3F, 2e38F}) {
    EXPECT_EQ(static_cast<double>(ups<bf16>(w, 16)), want<bf16>(w, 16)) << w;
  }
  for (const float w : {1.0F, 1.0F + 0x1p-23F, 1.7F, 0.001F, 0x1p-14F, 65503.9F}) {
    EXPECT_EQ(static_cast<double>(ups<fp16>(w, 13)), want<fp16>(w, 13)) << w;
  }
}

TEST(RandomRounding, OfSubnormalHalves) {
  // From 2^-22 on, all 24 bits of a number affect the probability.
  for (const float w : {0x1.fffffep-15F, 0x1.23456p-17F, 0x1.fedcbap-22F}) {
    EXPECT_EQ(static_cast<double>(ups<fp16>(w, 21)), want<fp16>(w, 21)) << w;
  }
  for (const float w : {0x1.234568p-24F, 0x1.8p-40F, 0x1p-46F, 0x1p-149F}) {
    EXPECT_EQ(static_cast<double>(ups<fp16>(w, 21)), std::floor(want<fp16>(w, 21))) << w;
  }
}

template <class Half>
void expect_stays() {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    const float w = to_float(half);
    for (const uint32_t word : {0U, 0x80000000U, 0xffffffffU}) {
      const Half got = round_at_random<Half>(w, word);
      if (std::isnan(w)) {
        EXPECT_TRUE(std::isnan(to_float(got))) << bits;
      } else {
        EXPECT_EQ(got, half) << bits;
      }
    }
  }
}

TEST(RandomRounding, LeavesNumbersOf16BitsAsTheyAre) {
  expect_stays<bf16>();
  expect_stays<fp16>();
}

TEST(RandomRounding, MakesNoNumberInfiniteByChance) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const uint32_t word : {0U, 0xffffffffU}) {
    EXPECT_EQ(to_float(round_at_random<fp16>(65503.9F, word)), word == 0 ? 65472.0F : 65504.0F);
    EXPECT_EQ(to_float(round_at_random<fp16>(-65519.9F, word)), -65504.0F);
    EXPECT_EQ(to_float(round_at_random<fp16>(65520.0F, word)), infinity);
    EXPECT_EQ(to_float(round_at_random<fp16>(-1e30F, word)), -infinity);
    EXPECT_EQ(to_float(round_at_random<bf16>(0x1.fe8p127F, word)), 0x1.fep127F);
    EXPECT_EQ(to_float(round_at_random<bf16>(-0x1.ffp127F, word)), -infinity);
  }
}

}  // namespace
}  // namespace espalier::random_rounding_test
