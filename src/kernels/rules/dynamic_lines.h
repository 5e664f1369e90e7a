#pragma once
// The dynamic map (dynamic_map.h) as lines, from which all backends compute values and codes.
//
// Number the magnitudes p = 0, 1, 2, … from zero up (without sign: from 1, so that p = code + 1).
// Decade j holds p in [2^l, 2^(l+1)), l = j (without sign: l = j + 1), and there
//   value(p) = 10^(j-6) (0.9 (p + 1/2) / 2^l - 0.8),
// a line. Decades meet where these lines cross, and each line is steeper than the one before. So
//   - the value is the maximum of the seven lines
//   - its inverse, p + 1/2 as a function of the value, is the minimum of the seven inverse lines
//   - rounding the inverse down gives the nearest value, except just above a decade's border: steps
//     grow fivefold there, so the middle between the two neighbours lies 1/5 of a step beyond it
#include <utility>

#include "src/kernels/kernels.h"
#include "src/kernels/rules/shared.h"

namespace espalier::kernels {

/// In a decade: value = slope (p + 1/2) + start; p + 1/2 = steepness value + offset.
struct DynamicLine {
  float slope, start, steepness, offset;
};

template <DynamicMap kMap>
class DynamicLines {
 public:
  static constexpr bool kSigned = kMap == DynamicMap::with_sign;
  static constexpr int kLevel = kSigned ? 0 : 1;  ///< l of decade 0
  /// The middle between the two largest values; from it on, numbers get the code of 1.
  static constexpr float kNearOne = 1.0F - 0.225F / (kSigned ? 64 : 128);
  /// Numbers are clamped to this before the lines are evaluated.
  static constexpr float kBelowOne = 0.99999F;
  /// Position of the middle above a decade's border, in steps; the next code begins there.
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
      // The border to zero lies in the middle, at 2.75e-7, as the rule of 1/5 requires. The other
      // end, (1e-6, 2), stays.
      made.steepness = static_cast<float>(0.8 / 7.25e-7);
      made.offset = static_cast<float>(2 - 0.8 / 0.725);
    }
    return made;
  }

  /// The magnitude of number p.
  ESPALIER_RULE static float magnitude(float p) {
    return smaller(highest(p + 0.5F, std::make_integer_sequence<int, 7>{}), 1.0F);
  }
  /// The value of a code.
  ESPALIER_RULE static float value(int code) {
    if constexpr (kSigned) {
      const auto p = static_cast<float>(code - 127);
      const float found = magnitude(magnitude_of(p));
      return float_of(bits_of(found) | (bits_of(p) & 0x80000000U));
    }
    return magnitude(static_cast<float>(code + 1));
  }

 private:
  template <int kDecade>
  ESPALIER_RULE static float height(float middle) {
    constexpr DynamicLine kLine = line(kDecade);
    return middle * kLine.slope + kLine.start;
  }
  template <int... kDecades>
  ESPALIER_RULE static float highest(float middle, std::integer_sequence<int, kDecades...>) {
    float best = 0;
    ((best = larger(height<kDecades>(middle), best)), ...);
    return best;
  }
};

/// The scale of a block, and the factor of its numbers.
struct BlockScale {
  float scale, inverse;
};
/// `high` and `low`: the largest and smallest number, high >= 0 and low <= 0.
ESPALIER_RULE BlockScale block_scale(float high, float low) {
  high = smaller(high, kLargest);
  low = larger(low, -kLargest);
  const float scale = high >= -low ? high : low;
  const bool zero = magnitude_of(scale) < 0x1p-104F;
  return {zero ? 0.0F : scale, zero ? 0.0F : 1.0F / scale};
}

}  // namespace espalier::kernels
