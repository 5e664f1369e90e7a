#pragma once
// fp8-e5m2, fp8-e4m3: sign, 5 or 4 exponent bits, 2 or 3 mantissa bits, times the bucket's scale.
//
//   header    scale = the least power of two that brings the largest magnitude to at most the
//             largest number of the format (E5M2: 57,344; E4M3, which has no infinity: 448)
//   value     number * scale
//
// Near the largest float, numbers are limited to 7/8 of it, so that none becomes infinite.
// Source: Micikevicius and others, "FP8 formats for deep learning", 2022.
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::wire {

/// The least 2^k, k >= -149, with m <= 1.75 2^exponent 2^k.
ESPALIER_RULE float power_of_two(float m, int exponent) {
  if (m == 0) {
    return 0;
  }
  const bool tiny = m < 0x1p-64F;
  const uint32_t bits = bits_of(tiny ? m * 0x1p64F : m);
  const bool above = (bits & 0x7fffffU) > 0x600000U;  // 1.75
  const int k = static_cast<int>(bits >> 23) - 127 - (tiny ? 64 : 0) - exponent + (above ? 1 : 0);
  const int power = k > -149 ? k : -149;
  return float_of(power >= -126 ? static_cast<uint32_t>(power + 127) << 23
                                : 1U << static_cast<uint32_t>(power + 149));
}

template <int kExponentBits>
struct Fp8Numbers {
  static constexpr Find kFind = Find::largest;
  static constexpr int kMantissaBits = 7 - kExponentBits;
  static constexpr uint32_t kBias = (1U << (kExponentBits - 1)) - 1;
  static constexpr float kMinNormal = kExponentBits == 5 ? 0x1p-14F : 0x1p-6F;
  static constexpr float kUnit = kMinNormal / (1 << kMantissaBits);  ///< of subnormal numbers
  static constexpr int kExponent = kExponentBits == 5 ? 15 : 8;
  static constexpr float kMax = 1.75F * static_cast<float>(1 << kExponent);  ///< 57344, 448

  ESPALIER_RULE static Carried carry(const WireFormat&, const Measured& found, int64_t,
                                     const WireTables&) {
    return carried_scale(is_bad(found) ? not_a_number()
                                       : power_of_two(largest_of(found), kExponent));
  }

  /// Normal numbers are rounded by an integer addition to their bits; subnormal ones by adding a
  /// float whose last bit is their unit.
  struct Encoder {
    Scaling to;
    float top;  ///< the largest number in use

    Encoder() = default;
    ESPALIER_RULE Encoder(const WireFormat&, const Carried& carried, const WireTables&) {
      const float scale = carried.scale();
      to = scaling(scale, 1);
      // The largest number of the format, unless its product with the scale overflows.
      top = kMax <= kLargest / scale || scale == 0 ? kMax : 0.5F * kMax;
    }
    template <bool kRandom>
    ESPALIER_RULE uint32_t code(float x, uint32_t word) const {
      constexpr int kDropped = 23 - kMantissaBits;
      constexpr uint32_t kRebias = (127U - kBias) << kMantissaBits;
      constexpr float kToUnits = kRound * kUnit;
      float v = magnitude_of(scaled(x, to));
      v = v > top ? top : v;
      const uint32_t bits = bits_of(v);
      uint32_t up = 0;
      float small = v;
      if constexpr (kRandom) {
        up = word >> (32 - kDropped);
        small += dither(word) * kUnit;
      } else {
        up = (1U << (kDropped - 1)) - 1 + ((bits >> kDropped) & 1U);
      }
      const uint32_t normal = ((bits + up) >> kDropped) - kRebias;
      const uint32_t units = bits_of(small + kToUnits);
      const uint32_t magnitude = v < kMinNormal ? units : normal;
      return (magnitude & 0x7fU) | (bits_of(x) >> 24 & 0x80U);
    }
  };

  struct Decoder {
    float scale;
    Decoder() = default;
    ESPALIER_RULE Decoder(const WireFormat&, const Carried& carried, const float*)
        : scale(carried.scale()) {}
    ESPALIER_RULE float value(uint32_t code) const {
      constexpr uint32_t kRebias = (127U - kBias) << 23;
      // Codes beyond the largest number: E5M2 has an infinity and NaN, E4M3 one NaN.
      constexpr uint32_t kLast = kExponentBits == 5 ? 0x7bU : 0x7eU;
      const uint32_t magnitude = code & 0x7fU;
      const uint32_t moved = magnitude << (23 - kMantissaBits);
      const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * kUnit;
      uint32_t bits = magnitude < (1U << kMantissaBits) ? bits_of(small) : moved + kRebias;
      // The E4M3 NaN has all bits of the mantissa set.
      bits = magnitude > kLast ? moved | kInfiniteBits : bits;
      bits |= (code & 0x80U) << 24;
      return float_of(bits) * scale;
    }
  };
};

struct Fp8E5M2 : Fp8Numbers<5> {
  static constexpr int kExponentBits = 5;
  static constexpr WireCodec kEntry{.name = "fp8-e5m2",
                                    .help =
                                        "8-bit floats, 5 bits of exponent; a power of two a "
                                        "bucket",
                                    .numbers = WireNumbers::bucket,
                                    .random = true};
};
struct Fp8E4M3 : Fp8Numbers<4> {
  static constexpr int kExponentBits = 4;
  static constexpr WireCodec kEntry{.name = "fp8-e4m3",
                                    .help =
                                        "8-bit floats, 4 bits of exponent; a power of two a "
                                        "bucket",
                                    .numbers = WireNumbers::bucket,
                                    .random = true};
};

}  // namespace espalier::kernels::wire
