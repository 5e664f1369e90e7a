#include "src/kernels/cpu/wire/bucket.h"

#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr float kNaN = __builtin_nanf("");
constexpr float kLargestHalf = 65504;

float from_ordered(int32_t ordered) { return __builtin_bit_cast(float, ordered_bits(ordered)); }

template <class T>
void put(std::byte* wire, T value) {
  __builtin_memcpy(wire, &value, sizeof value);
}
float get_float(const std::byte* wire) {
  float value;
  __builtin_memcpy(&value, wire, sizeof value);
  return value;
}
uint16_t get_half(const std::byte* wire) {
  uint16_t value;
  __builtin_memcpy(&value, wire, sizeof value);
  return value;
}

/// To half precision, not above (or not below) x; |x| is at most the largest.
uint16_t half_below(float x) {
  const uint16_t half = to_fp16(x).bits;
  if (to_float(fp16{half}) <= x) {
    return half;
  }
  const bool negative = (half & 0x8000U) != 0;
  // The number before: of zero the smallest negative one.
  return half == 0 ? uint16_t{0x8001} : static_cast<uint16_t>(negative ? half + 1 : half - 1);
}
uint16_t half_above(float x) {
  return half_below(-x) ^ uint16_t { 0x8000 };
}

struct Range {
  float least, unit;
};

/// unit = (most - least) / levels; such that least + levels unit reaches most also where unit is a
/// subnormal number, of few bits.
Range range_of(float least, float most, float levels) {
  const float half = most * 0.5F - least * 0.5F;
  const bool wide = half > 0.5F * kLargest;
  const float extent = most - least;
  float unit = wide ? half / levels * 2.0F : extent / levels;
  unit = unit < kLargest ? unit : kLargest;
  if (unit < 0x1p-126F && unit * levels < extent) {
    unit = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, unit) + 1U);
  }
  return {least, unit};
}

void carry_range(const WireFormat& format, const Measured& found, std::byte* wire) {
  const auto levels = static_cast<float>((1 << format.bits) - 1);
  constexpr int32_t kMost = 0x7f7fffff;
  const bool bad = found.high > kMost || found.low < -kMost - 1;
  const Range range =
      bad ? Range{kNaN, kNaN} : range_of(from_ordered(found.low), from_ordered(found.high), levels);
  if (!format.half_meta) {
    put(wire, range.unit);
    put(wire + 4, range.least);
    return;
  }
  uint16_t unit = 0x7e00;  // NaN
  uint16_t least = 0x7e00;
  if (!bad && __builtin_fabsf(range.least) <= kLargestHalf) {
    const uint16_t below = half_below(range.least);
    const Range rest = range_of(to_float(fp16{below}), from_ordered(found.high), levels);
    if (rest.unit <= kLargestHalf) {
      least = below;
      unit = half_above(rest.unit) & uint16_t{0x7fff};
    }
  }
  put(wire, unit);
  put(wire + 2, least);
}

/// 2^k with m <= `most` 2^k, the least such k >= -149; `most` = 1.75 2^exponent.
float power_of_two(float m, int exponent) {
  if (m == 0) {
    return 0;
  }
  const bool tiny = m < 0x1p-64F;
  const uint32_t bits = __builtin_bit_cast(uint32_t, tiny ? m * 0x1p64F : m);
  const bool above = (bits & 0x7fffffU) > 0x600000U;  // 1.75
  const int k = static_cast<int>(bits >> 23) - 127 - (tiny ? 64 : 0) - exponent + (above ? 1 : 0);
  const int least = k > -149 ? k : -149;
  const uint32_t power = least >= -126 ? static_cast<uint32_t>(least + 127) << 23
                                       : 1U << static_cast<uint32_t>(least + 149);
  return __builtin_bit_cast(float, power);
}

void carry_percentiles(const WireFormat& format, bool bad, const float* x, int64_t n,
                       std::byte* wire) {
  const int count = 1 << (format.bits - 1);
  float numbers[kMostNumbers];
  float found[128];
  if (bad) {
    for (int k = 0; k < count; ++k) {
      found[k] = kNaN;
    }
  } else {
    const int64_t stride = divide_up(n, kMostNumbers);
    const int64_t taken = divide_up(n, stride);
    for (int64_t i = 0; i < taken; ++i) {
      numbers[i] = __builtin_fabsf(x[i * stride]);
    }
    percentiles(numbers, taken, count, found);
  }
  __builtin_memcpy(wire, found, sizeof(float) * static_cast<size_t>(count));
}

Scaling scaling(float unit, float parts) {
  if (!(unit > 0)) {
    return {1, 0};
  }
  const float before = unit < 0x1p-64F ? 0x1p64F : unit > 0x1p64F ? 0x1p-64F : 1.0F;
  return {before, parts / (unit * before)};
}

constexpr int kExponentE5M2 = 15;  ///< 57344 = 1.75 2^15
constexpr int kExponentE4M3 = 8;   ///< 448 = 1.75 2^8

/// The largest number that may be used: the largest that is, unless that times the scale overflows.
float largest_number(float scale, int exponent) {
  const float most = 1.75F * static_cast<float>(1 << exponent);
  return most <= kLargest / scale || scale == 0 ? most : 0.5F * most;
}

Range read_range(const WireFormat& format, const std::byte* wire) {
  return format.half_meta
             ? Range{to_float(fp16{get_half(wire + 2)}), to_float(fp16{get_half(wire)})}
             : Range{get_float(wire + 4), get_float(wire)};
}

void prepare_middles(const WireFormat& format, const std::byte* wire, BucketEncoder& made) {
  made.magnitudes = 1 << (format.bits - 1);
  for (int k = 0; k + 1 < made.magnitudes; ++k) {
    const float low = get_float(wire + 4 * k);
    const float high = get_float(wire + 4 * k + 4);
    const float sum = low + high;
    made.middle[k] = sum <= kLargest ? sum * 0.5F : low * 0.5F + high * 0.5F;
  }
}

}  // namespace

void carry(const WireFormat& format, const Measured& found, const float* x, int64_t n,
           std::byte* wire) {
  const bool bad = static_cast<uint32_t>(found.largest) >= kInfinite;
  const float largest = bad ? kNaN : __builtin_bit_cast(float, found.largest);
  switch (format.code) {
    case WireCode::maxmin:
      return carry_range(format, found, wire);
    case WireCode::table:
      return carry_percentiles(format, bad, x, n, wire);
    case WireCode::sign:
      return put(wire, bad ? kNaN : static_cast<float>(found.sum / static_cast<double>(n)));
    case WireCode::static8:
    case WireCode::mantissa8:
      return put(wire, bad ? kNaN : power_of_ten(largest));
    case WireCode::fp8_e5m2:
      return put(wire, bad ? kNaN : power_of_two(largest, kExponentE5M2));
    case WireCode::fp8_e4m3:
      return put(wire, bad ? kNaN : power_of_two(largest, kExponentE4M3));
    default:
      return put(wire, largest);
  }
}

void prepare(const WireFormat& format, const std::byte* wire, BucketEncoder& made) {
  const float first = format.half_meta ? to_float(fp16{get_half(wire)}) : get_float(wire);
  made.bad = first != first;
  if (made.bad) {
    return;
  }
  switch (format.code) {
    case WireCode::maxmin: {
      const Range range = read_range(format, wire);
      made.to = scaling(range.unit, 1);
      made.least = range.least * made.to.before;
      made.top = static_cast<float>((1 << format.bits) - 1);
      return;
    }
    case WireCode::table:
      return prepare_middles(format, wire, made);
    case WireCode::fp8_e5m2:
    case WireCode::fp8_e4m3:
      made.top =
          largest_number(first, format.code == WireCode::fp8_e5m2 ? kExponentE5M2 : kExponentE4M3);
      made.to = scaling(first, 1);
      return;
    case WireCode::linear8:
      made.to = scaling(first, 127);
      return;
    case WireCode::sign:
      return;
    default:
      made.table = &magnitude_table(format.code);
      made.to = scaling(first, 1);
  }
}

void prepare(const WireFormat& format, const std::byte* wire, BucketDecoder& made) {
  made.scale = 1;
  made.value = made.own_value;
  switch (format.code) {
    case WireCode::maxmin: {
      const Range range = read_range(format, wire);
      const float extent = range.unit * static_cast<float>((1 << format.bits) - 1);
      made.least = range.least;
      made.unit = range.unit;
      made.huge = !(extent < 0x1p126F && __builtin_fabsf(range.least) < 0x1p126F);
      return;
    }
    case WireCode::table: {
      const int count = 1 << (format.bits - 1);
      for (int k = 0; k < count; ++k) {
        const float magnitude = get_float(wire + 4 * k);
        made.own_value[k] = magnitude;
        made.own_value[k + count] = -magnitude;
      }
      return;
    }
    case WireCode::sign:
      made.own_value[0] = get_float(wire);
      made.own_value[1] = -made.own_value[0];
      return;
    case WireCode::linear8:
    case WireCode::fp8_e5m2:
    case WireCode::fp8_e4m3:
      made.scale = get_float(wire);
      return;
    default:
      made.scale = get_float(wire);
      made.value = magnitude_table(format.code).value;
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
