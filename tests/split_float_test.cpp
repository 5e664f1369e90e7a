// fp32 numbers as bf16 and the 16 bits that it lacks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "src/core/types.h"

namespace espalier {
namespace {

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

TEST(SplitFloat, joins_to_the_same_bits) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const auto [high, low] = split(x);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(to_float(high)));
      EXPECT_TRUE(std::isnan(join(high, low)));
    } else {
      ASSERT_EQ(bits_of(join(high, low)), bits_of(x)) << x;
    }
  }
}

TEST(SplitFloat, rounds_to_nearest) {
  std::mt19937 random(2);
  for (int i = 0; i < 100000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const bool tie = (bits_of(x) & 0xffffU) == 0x8000U;
    if (!std::isnan(x) && !tie) {
      ASSERT_EQ(split(x).high, to_bf16(x)) << x;
    }
  }
}

TEST(SplitFloat, ties_go_away_from_zero) {
  const float even = std::bit_cast<float>(0x3f808000U);  // to_bf16 goes down here
  EXPECT_EQ(split(even).high.bits, 0x3f81);
  EXPECT_EQ(split(-even).high.bits, 0xbf81);
  EXPECT_EQ(split(even).low, 0x8000);
  EXPECT_EQ(join(split(even).high, 0x8000), even);
}

TEST(SplitFloat, edges) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (const float x : {0.0F, -0.0F, infinity, -infinity, largest, -largest, 1.0F, 0x1p-149F,
                        -0x1p-149F, 0x1p-126F}) {
    EXPECT_EQ(bits_of(join(split(x).high, split(x).low)), bits_of(x)) << x;
  }
  EXPECT_EQ(to_float(split(infinity).high), infinity);
  EXPECT_EQ(split(infinity).low, 0);
  EXPECT_EQ(to_float(split(largest).high), infinity);  // as bf16; the joined number is finite
}

}  // namespace
}  // namespace espalier
