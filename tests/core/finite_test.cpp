#include "src/core/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace espalier::finite_test {
namespace {

template <class Number>
bool finite(const std::vector<Number>& values) {
  return all_finite(std::as_bytes(std::span(values)), dtype_of<Number>());
}

/// One element at any place decides, of sizes around the blocks and vectors of the loop.
template <class Number>
void check_places() {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const size_t count : {1, 2, 31, 1023, 1024, 1025, 3000}) {
    std::vector<Number> values(count, from_float<Number>(-1.5F));
    EXPECT_TRUE(finite(values)) << count;
    for (size_t at = 0; at < count; at += count < 100 ? 1 : 37) {
      for (const float bad : {inf, -inf, nan, -nan}) {
        const Number good = std::exchange(values[at], from_float<Number>(bad));
        EXPECT_FALSE(finite(values)) << count << " " << at << " " << bad;
        values[at] = good;
      }
    }
    values.back() = from_float<Number>(inf);
    EXPECT_FALSE(finite(values)) << count;
  }
}

TEST(Finite, OneElementDecides) {
  check_places<float>();
  check_places<bf16>();
  check_places<fp16>();
}

/// The elements beside the infinities: all patterns of 16 bits, and the largest of fp32.
TEST(Finite, LargestAndSmallestNumbersAreFinite) {
  using Limits = std::numeric_limits<float>;
  EXPECT_TRUE(finite<float>({Limits::max(), -Limits::max(), Limits::min(), Limits::denorm_min(),
                             0.0F, -0.0F, Limits::epsilon()}));
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    EXPECT_EQ(finite<bf16>({bf16{half}}), std::isfinite(to_float(bf16{half}))) << bits;
    EXPECT_EQ(finite<fp16>({fp16{half}}), std::isfinite(to_float(fp16{half}))) << bits;
  }
}

TEST(Finite, OtherTypesHoldNoInfinities) {
  EXPECT_TRUE(finite<int32_t>({0x7f800000}));
  EXPECT_TRUE(finite<uint8_t>({0xff, 0xff, 0xff, 0xff}));
  EXPECT_TRUE(finite<float>({}));
}

}  // namespace
}  // namespace espalier::finite_test
