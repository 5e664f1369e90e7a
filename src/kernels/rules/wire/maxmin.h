#pragma once
// maxmin: 2^bits levels between the least and the largest value of a bucket (QSGD in buckets).
//
//   header    unit = (max - min) / L and the least value, L = 2^bits - 1; with `half_meta` both in
//             fp16, the least value rounded down, the unit up
//   value     least + unit * level
//
// A constant bucket decodes to the constant. With half_meta, a bucket whose range exceeds fp16
// decodes to NaN. With one bit, values near the largest float are clamped to least + the largest
// float.
// Source: Markov and others, "CGX", Middleware 2022.
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::wire {

struct Maxmin {
  static constexpr int64_t usual_bucket(int bits) {
    return bits <= 4 ? 128 : 512;  // fewer levels need a narrower range (docs/results.md)
  }
  static constexpr int64_t carried_bytes(const WireFormat& format) {
    return format.half_meta ? 4 : 8;
  }
  static constexpr WireCodec kEntry{.name = "maxmin",
                                    .help =
                                        "2^BITS levels between a bucket's least and largest "
                                        "value (in fp16 with :fp16)",
                                    .numbers = WireNumbers::bits,
                                    .bits = 0,
                                    .random = true,
                                    .half_meta = true,
                                    .usual_bucket = usual_bucket,
                                    .carried_bytes = carried_bytes};
  static constexpr Find kFind = Find::range;

  struct Range {
    float least, unit;
  };

  /// unit = (most - least) / levels, rounded up if it is subnormal (few bits), so that least +
  /// levels unit reaches most.
  ESPALIER_RULE static Range range_of(float least, float most, float levels) {
    const float half = most * 0.5F - least * 0.5F;
    const bool wide = half > 0.5F * kLargest;
    const float extent = most - least;
    float unit = wide ? half / levels * 2.0F : extent / levels;
    unit = unit < kLargest ? unit : kLargest;
    if (unit < 0x1p-126F && unit * levels < extent) {
      unit = float_of(bits_of(unit) + 1U);
    }
    return {least, unit};
  }

  /// Rounds to half precision, down (or up); |x| is at most the largest half.
  ESPALIER_RULE static uint32_t half_below(float x) {
    const uint32_t half = to_half(x);
    if (from_half(half) <= x) {
      return half;
    }
    // The next half below; below zero, the smallest negative one.
    return half == 0 ? 0x8001U : (half & 0x8000U) != 0 ? half + 1 : half - 1;
  }
  ESPALIER_RULE static uint32_t half_above(float x) { return half_below(-x) ^ 0x8000U; }

  ESPALIER_RULE static float levels_of(const WireFormat& format) {
    return static_cast<float>((1 << format.bits) - 1);
  }

  ESPALIER_RULE static Carried carry(const WireFormat& format, const Measured& found, int64_t,
                                     const WireTables&) {
    constexpr float kLargestHalf = 65504;
    constexpr int32_t kMax = 0x7f7fffff;
    constexpr uint32_t kNaNHalf = 0x7e00;
    const float levels = levels_of(format);
    const bool bad = found.high > kMax || found.low < -kMax - 1;
    const float low = float_of(static_cast<uint32_t>(ordered_bits(found.low)));
    const float high = float_of(static_cast<uint32_t>(ordered_bits(found.high)));
    if (!format.half_meta) {
      const Range range = bad ? Range{not_a_number(), not_a_number()} : range_of(low, high, levels);
      return {{bits_of(range.unit), bits_of(range.least)}};
    }
    uint32_t unit = kNaNHalf;
    uint32_t least = kNaNHalf;
    if (!bad && magnitude_of(low) <= kLargestHalf) {
      const uint32_t below = half_below(low);
      const Range rest = range_of(from_half(below), high, levels);
      if (rest.unit <= kLargestHalf) {
        least = below;
        unit = half_above(rest.unit) & 0x7fffU;
      }
    }
    return {{unit | least << 16, 0}};
  }

  ESPALIER_RULE static Range range_in(const WireFormat& format, const Carried& carried) {
    if (format.half_meta) {
      return {from_half(carried.word[0] >> 16), from_half(carried.word[0] & 0xffffU)};
    }
    return {float_of(carried.word[1]), float_of(carried.word[0])};
  }

  struct Encoder {
    Scaling to;
    float least;  ///< the least value times to.before
    float top;    ///< the last level
    Encoder() = default;
    ESPALIER_RULE Encoder(const WireFormat& format, const Carried& carried, const WireTables&) {
      const Range range = range_in(format, carried);
      to = scaling(range.unit, 1);
      least = range.least * to.before;
      top = levels_of(format);
    }
    template <bool kRandom>
    ESPALIER_RULE uint32_t code(float x, uint32_t word) const {
      float t = (x * to.before - least) * to.after;
      t = t > top ? top : t;
      if constexpr (kRandom) {
        t += dither(word);
      }
      return rounded(t);
    }
  };

  struct Decoder {
    float least, unit;
    bool huge;  ///< intermediate sums may overflow
    Decoder() = default;
    ESPALIER_RULE Decoder(const WireFormat& format, const Carried& carried, const float*) {
      const Range range = range_in(format, carried);
      least = range.least;
      unit = range.unit;
      const float extent = unit * levels_of(format);
      huge = !(extent < 0x1p126F && magnitude_of(least) < 0x1p126F);
    }
    ESPALIER_RULE float usual_value(uint32_t code) const {
      return least + unit * static_cast<float>(static_cast<int32_t>(code));
    }
    ESPALIER_RULE float huge_value(uint32_t code) const {
      constexpr float kMax = 0.25F * kLargest;
      float sum = 0.25F * least + 0.25F * unit * static_cast<float>(static_cast<int32_t>(code));
      sum = sum > kMax ? kMax : sum;  // NaN propagates
      sum = sum < -kMax ? -kMax : sum;
      return 4.0F * sum;
    }
    ESPALIER_RULE float value(uint32_t code) const {
      return huge ? huge_value(code) : usual_value(code);
    }
  };
};

}  // namespace espalier::kernels::wire
