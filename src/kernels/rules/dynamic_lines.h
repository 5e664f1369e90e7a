#pragma once
// The dynamic map (dynamic_map.h) as lines, from which every backend computes values and codes.
//
// Number the magnitudes p = 0, 1, 2, … from zero up (without sign: from 1, so that p = code + 1).
// Then decade j holds p in [2^l, 2^(l+1)), l = j (without sign: j + 1), and in it
//   value(p) = 10^(j-6) (0.9 (p + 1/2) / 2^l - 0.8),
// a line. Decades meet where these lines cross, and each is steeper than the one before: so the
// value is the maximum of the seven lines, and its inverse, p + 1/2 for a value, the minimum of the
// seven inverse lines. Rounding that down gives the nearest value, but for a little more than a
// decade's border: the middle between its neighbours lies 1/5 of a step beyond it, since steps grow
// fivefold there.
#include "src/kernels/kernels.h"

namespace espalier::kernels {

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

}  // namespace espalier::kernels
