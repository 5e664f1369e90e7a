#pragma once
// What a bucket carries, from what was found in it; see wire/bucket.cpp. One thread.
#include "src/kernels/cuda/wire/bucket.h"

namespace espalier::kernels::ESPALIER_GPU {

/// To half precision, not above (or not below) x; |x| is at most the largest.
__device__ inline unsigned half_below(float x) {
  const unsigned half = to_fp16_bits(x);
  if (from_fp16(half) <= x) {
    return half;
  }
  // The number before: of zero the smallest negative one.
  return half == 0 ? 0x8001U : (half & 0x8000U) != 0 ? half + 1 : half - 1;
}
__device__ inline unsigned half_above(float x) { return half_below(-x) ^ 0x8000U; }

struct Range {
  float least, unit;
};

/// unit = (most - least) / levels; such that least + levels unit reaches most also where unit is a
/// subnormal number, of few bits.
__device__ inline Range range_of(float least_value, float most_value, float levels) {
  const float half = most_value * 0.5F - least_value * 0.5F;
  const bool wide = half > 0.5F * kLargest;
  const float extent = most_value - least_value;
  float unit = wide ? half / levels * 2.0F : extent / levels;
  unit = unit < kLargest ? unit : kLargest;
  if (unit < 0x1p-126F && unit * levels < extent) {
    unit = __uint_as_float(__float_as_uint(unit) + 1U);
  }
  return {least_value, unit};
}

__device__ inline void carry_range(const Message& message, const Measured& found, std::byte* wire) {
  constexpr float kLargestHalf = 65504;
  constexpr int32_t kMost = 0x7f7fffff;
  const auto levels = static_cast<float>((1 << message.bits) - 1);
  const bool bad = found.high > kMost || found.low < -kMost - 1;
  const float low = __int_as_float(ordered_bits(found.low));
  const float high = __int_as_float(ordered_bits(found.high));
  const Range range = bad ? Range{not_a_number(), not_a_number()} : range_of(low, high, levels);
  if (!message.half_meta) {
    put_float(wire, range.unit);
    put_float(wire + 4, range.least);
    return;
  }
  unsigned unit = 0x7e00;  // NaN
  unsigned least_half = 0x7e00;
  if (!bad && fabsf(range.least) <= kLargestHalf) {
    const unsigned below = half_below(range.least);
    const Range rest = range_of(from_fp16(below), high, levels);
    if (rest.unit <= kLargestHalf) {
      least_half = below;
      unit = half_above(rest.unit) & 0x7fffU;
    }
  }
  put_half(wire, unit);
  put_half(wire + 2, least_half);
}

/// 2^k with m <= `most` 2^k, the least such k >= -149; `most` = 1.75 2^exponent.
__device__ inline float power_of_two(float m, int exponent) {
  if (m == 0) {
    return 0;
  }
  const bool tiny = m < 0x1p-64F;
  const uint32_t bits = __float_as_uint(tiny ? m * 0x1p64F : m);
  const bool above = (bits & 0x7fffffU) > 0x600000U;  // 1.75
  const int k = static_cast<int>(bits >> 23) - 127 - (tiny ? 64 : 0) - exponent + (above ? 1 : 0);
  const int power = k > -149 ? k : -149;
  return __uint_as_float(power >= -126 ? static_cast<uint32_t>(power + 127) << 23
                                       : 1U << static_cast<uint32_t>(power + 149));
}

__device__ inline float power_of_ten(const WireTables& tables, float largest) {
  int k = 0;
  while (k + 1 < WireTables::kPowers && tables.powers_of_ten[k] < largest) {
    ++k;
  }
  return largest == 0 ? 0.0F : tables.powers_of_ten[k];
}

inline constexpr int kExponentE5M2 = 15;  ///< 57344 = 1.75 2^15
inline constexpr int kExponentE4M3 = 8;   ///< 448 = 1.75 2^8

/// Writes what a bucket of n values carries; not of table and topk.
__device__ inline void carry(const Message& message, const Measured& found, int64_t n,
                             std::byte* wire) {
  if (message.code == WireCode::maxmin) {
    carry_range(message, found, wire);
    return;
  }
  if (static_cast<uint32_t>(found.largest) >= kInfinite) {
    put_float(wire, not_a_number());
    return;
  }
  const float largest = __int_as_float(found.largest);
  switch (message.code) {
    case WireCode::sign:
      put_float(wire, static_cast<float>(found.sum / static_cast<double>(n)));
      return;
    case WireCode::static8:
    case WireCode::mantissa8:
      put_float(wire, power_of_ten(*message.tables, largest));
      return;
    case WireCode::fp8_e5m2:
      put_float(wire, power_of_two(largest, kExponentE5M2));
      return;
    case WireCode::fp8_e4m3:
      put_float(wire, power_of_two(largest, kExponentE4M3));
      return;
    default:
      put_float(wire, largest);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
