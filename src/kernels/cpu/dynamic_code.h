#pragma once
// 8-bit codes of the dynamic map (../dynamic_map.h), a block of at most kQuantizeBlock numbers at a
// time. Two implementations, chosen by CMake: loops that the compiler vectorises
// (dynamic_code_plain.cpp), and permutes of AVX-512 (dynamic_code_avx512.cpp).
//
// Number the magnitudes p = 0, 1, 2, … from zero up (without sign: from 1, so that p = code + 1).
// Then decade j holds p in [2^l, 2^(l+1)), l = j (without sign: j + 1), and in it
//   value(p) = 10^(j-6) (0.9 (p + 1/2) / 2^l - 0.8),
// a line. Decades meet where these lines cross, and each is steeper than the one before: so the
// value is the maximum of the seven lines, and its inverse, p + 1/2 for a value, the minimum of the
// seven inverse lines. Rounding that down gives the nearest value, but for a little more than a
// decade's border: the middle between its neighbours lies 1/5 of a step beyond it, since steps grow
// fivefold there.
//
// Scale of a block: its element of largest magnitude, with its sign, so that it is +1 times the
// scale. Blocks below 2^-104 become zero: their values would lose bits as subnormal numbers, and
// codes would not survive being decoded and encoded. Without sign, a number above zero never gets
// the code of zero: the second moment of AdamW is divided by, and a step m / (sqrt(0) + epsilon)
// can be 10^6 times too long (bitsandbytes lets it happen); the smallest code, 3.25e-7 of the
// block's largest, makes such steps shorter instead.
#include <cstdint>

#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

/// x[k] = map[codes[k]] scale
template <DynamicMap kMap>
void decode(const uint8_t* codes, float scale, int64_t n, float* x);

/// Returns the scale. Infinities and NaN are stored as finite numbers.
template <DynamicMap kMap>
float encode(const float* x, int64_t n, uint8_t* codes);

/// value = slope (p + 1/2) + start in a decade; p + 1/2 = steepness value + offset.
struct DynamicLine {
  float slope, start, steepness, offset;
};

template <DynamicMap kMap>
struct DynamicLines {
  static constexpr bool kSigned = kMap == DynamicMap::with_sign;
  static constexpr int kLevel = kSigned ? 0 : 1;  ///< l of decade 0
  /// The middle between the two largest values, where the code of 1 begins.
  static constexpr float kNearOne = 1.0F - 0.225F / (kSigned ? 64 : 128);
  /// Numbers are cut off here before they meet the lines.
  static constexpr float kBelowOne = 0.99999F;
  /// Of a step: where the code after a decade's border begins.
  static constexpr float kBorder = 0.2F;

  static consteval double decade(int j) {
    double power = 1;
    for (int i = j; i < 6; ++i) {
      power /= 10;
    }
    return power;
  }

  static consteval DynamicLine line(int j) {
    const double power = decade(j);
    const double parts = 1 << (j + kLevel);
    DynamicLine made{static_cast<float>(0.9 * power / parts), static_cast<float>(-0.8 * power),
                     static_cast<float>(parts / 0.9 / power),
                     static_cast<float>(parts * 0.8 / 0.9)};
    if (kSigned && j == 0) {
      // The border to zero, in the middle at 2.75e-7, where the rule of 1/5 wants it; the other
      // end, (1e-6, 2), stays.
      made.steepness = static_cast<float>(0.8 / 7.25e-7);
      made.offset = static_cast<float>(2 - 0.8 / 0.725);
    }
    return made;
  }
};

/// The scale of a block, and what to multiply its numbers with.
struct BlockScale {
  float scale, inverse;
};

/// `high` and `low`: the largest and smallest number, zero at least and at most.
[[gnu::always_inline]] inline BlockScale block_scale(float high, float low) {
  constexpr float kMost = 0x1.fffffep127F;
  high = high < kMost ? high : kMost;
  low = low > -kMost ? low : -kMost;
  const float scale = high >= -low ? high : low;
  const bool zero = __builtin_fabsf(scale) < 0x1p-104F;
  return {zero ? 0.0F : scale, zero ? 0.0F : 1.0F / scale};
}

}  // namespace espalier::kernels::ESPALIER_ISA
