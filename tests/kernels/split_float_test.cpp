// fp32 numbers split into bf16 or fp16 and the rounded-off bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "src/kernels/rules/master.h"

namespace espalier::kernels::split_float_test {
namespace {

TEST(SplitFloat, joins_to_the_same_bits) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const auto [high, low] = split<bf16>(x);
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
      ASSERT_EQ(split<bf16>(x).high, to_bf16(x)) << x;
    }
  }
}

TEST(SplitFloat, ties_go_away_from_zero) {
  const float even = std::bit_cast<float>(0x3f808000U);  // to_bf16 goes down here
  EXPECT_EQ(split<bf16>(even).high.bits, 0x3f81);
  EXPECT_EQ(split<bf16>(-even).high.bits, 0xbf81);
  EXPECT_EQ(split<bf16>(even).low, 0x8000);
  EXPECT_EQ(join(split<bf16>(even).high, 0x8000), even);
}

TEST(SplitFloat, edges) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (const float x : {0.0F, -0.0F, infinity, -infinity, largest, -largest, 1.0F, 0x1p-149F,
                        -0x1p-149F, 0x1p-126F}) {
    EXPECT_EQ(bits_of(join(split<bf16>(x).high, split<bf16>(x).low)), bits_of(x)) << x;
  }
  EXPECT_EQ(to_float(split<bf16>(infinity).high), infinity);
  EXPECT_EQ(split<bf16>(infinity).low, 0);
  EXPECT_EQ(to_float(split<bf16>(largest).high), infinity);  // as bf16; the joined number is finite
}

/// Every exponent with every mantissa of 14 bits; the lower 9 bits at both ends and in the middle.
template <class Each>
void for_magnitudes(const Each& each) {
  for (uint32_t upper = 0; upper < 0x7f800000U; upper += 0x200U) {
    for (const uint32_t lower : {0U, 1U, 0xffU, 0x100U, 0x101U, 0x1ffU}) {
      each(std::bit_cast<float>(upper | lower));
    }
  }
}

/// Exact arithmetic in double: multiples of 2^-24 or of 2^-10 of the power of two below.
double nearest_half(double x) {
  const int exponent = std::max(std::ilogb(x), -14);
  const double unit = std::ldexp(1.0, exponent - 10);
  const double rounded = std::nearbyint(x / unit) * unit;
  return rounded > 65504 ? std::numeric_limits<double>::infinity() : rounded;
}

TEST(Half, rounds_to_nearest_even) {
  int64_t wrong = 0;
  for_magnitudes([&](float x) {
    const double want = x == 0 ? 0 : nearest_half(x);
    wrong += static_cast<double>(to_float(to_fp16(x))) == want ? 0 : 1;
    wrong += static_cast<double>(to_float(to_fp16(-x))) == -want ? 0 : 1;
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Half, every_number_comes_back) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const fp16 x{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(x))) {
      EXPECT_GT(bits & 0x7fffU, 0x7c00U);
      EXPECT_EQ(to_fp16(to_float(x)).bits, 0x7e00U | (bits & 0x8000U));
    } else {
      EXPECT_EQ(to_fp16(to_float(x)), x) << bits;
    }
  }
  EXPECT_EQ(to_float(fp16{0x3c01}), 1.0F + 0x1p-10F);
  EXPECT_EQ(to_float(fp16{0x8001}), -0x1p-24F);
  EXPECT_EQ(to_float(fp16{0x7bff}), 65504.0F);
}

TEST(SplitHalf, joins_to_the_same_bits) {
  int64_t wrong = 0;
  for_magnitudes([&](float x) {
    if (x < 0x1p-16F || x >= 65520.0F) {
      return;
    }
    for (const float w : {x, -x}) {
      const auto [high, low] = split<fp16>(w);
      wrong += high == to_fp16(w) && bits_of(join(high, low)) == bits_of(w) ? 0 : 1;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(SplitHalf, counts_small_numbers_in_multiples) {
  int64_t wrong = 0;
  for_magnitudes([&](float x) {
    if (x >= 0x1p-16F) {
      return;
    }
    const auto want = static_cast<float>(std::nearbyint(x * 0x1p39) * 0x1p-39);
    for (const float sign : {1.0F, -1.0F}) {
      const auto [high, low] = split<fp16>(sign * x);
      wrong += bits_of(join(high, low)) == bits_of(sign * want) ? 0 : 1;
      const auto again = split<fp16>(join(high, low));
      wrong += again.high == high && again.low == low ? 0 : 1;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(SplitHalf, edges) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {65520.0F, 70000.0F, std::numeric_limits<float>::max(), infinity}) {
    for (const float sign : {1.0F, -1.0F}) {
      const auto [high, low] = split<fp16>(sign * x);
      EXPECT_EQ(to_float(high), sign * infinity);
      EXPECT_EQ(low, 0);
      EXPECT_EQ(join(high, low), sign * infinity);
    }
  }
  const auto [high, low] = split<fp16>(-std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(high.bits, 0x7e00);
  EXPECT_EQ(low, 0);
  EXPECT_TRUE(std::isnan(join(high, low)));
  // `low` is at most half a unit in the last place.
  EXPECT_EQ(split<fp16>(1.0F + 0x1p-11F).low, 0x4000);
  EXPECT_EQ(split<fp16>(2.0F - 0x1p-12F).high, to_fp16(2));
  EXPECT_EQ(static_cast<int16_t>(split<fp16>(2.0F - 0x1p-12F).low), -0x1000);
}

}  // namespace
}  // namespace espalier::kernels::split_float_test
