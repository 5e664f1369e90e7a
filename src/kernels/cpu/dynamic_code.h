#pragma once
// Codes of the dynamic map (../dynamic_map.h) without a table, in loops that vectorise.
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
#include "src/kernels/cpu/loops.h"
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

/// value = slope (p + 1/2) + start in a decade; p + 1/2 = steepness value + offset.
struct DynamicLine {
  float slope, start, steepness, offset;
};

template <DynamicMap kMap>
struct DynamicCode {
  static constexpr bool kSigned = kMap == DynamicMap::with_sign;
  static constexpr int kOne = kSigned ? 128 : 256;  ///< p of the value 1
  /// The middle between the two largest values.
  static constexpr float kNearOne = 1.0F - 0.225F / (kSigned ? 64 : 128);

  static consteval DynamicLine line(int j) {
    double decade = 1;
    for (int i = j; i < 6; ++i) {
      decade /= 10;
    }
    const double parts = kSigned ? 1 << j : 2 << j;
    DynamicLine made{static_cast<float>(0.9 * decade / parts), static_cast<float>(-0.8 * decade),
                     static_cast<float>(parts / 0.9 / decade),
                     static_cast<float>(parts * 0.8 / 0.9)};
    if (kSigned && j == 0) {
      // The border to zero, in the middle at 2.75e-7, where the rule of 1/5 wants it; the other
      // end, (1e-6, 2), stays.
      made.steepness = static_cast<float>(0.8 / 7.25e-7);
      made.offset = static_cast<float>(2 - 0.8 / 0.725);
    }
    return made;
  }

  /// The value of p, an integer.
  [[gnu::always_inline]] static float value(float p) {
    const float middle = p + 0.5F;
    float best = 0;
    best = higher<0>(middle, best);
    best = higher<1>(middle, best);
    best = higher<2>(middle, best);
    best = higher<3>(middle, best);
    best = higher<4>(middle, best);
    best = higher<5>(middle, best);
    best = higher<6>(middle, best);
    return best < 1.0F ? best : 1.0F;
  }

  /// The nearest p to `x` in [0, 2].
  [[gnu::always_inline]] static int32_t nearest(float x) {
    float position = 1024;
    position = lower<0>(x, position);
    position = lower<1>(x, position);
    position = lower<2>(x, position);
    position = lower<3>(x, position);
    position = lower<4>(x, position);
    position = lower<5>(x, position);
    position = lower<6>(x, position);
    const auto p = static_cast<int32_t>(position);
    const bool border = (p & (p - 1)) == 0;
    const bool before = position - static_cast<float>(p) < 0.2F;
    const int32_t near = p - static_cast<int32_t>(border & before);
    return x >= kNearOne ? kOne : near;
  }

  [[gnu::always_inline]] static float decoded(uint8_t code) {
    if constexpr (!kSigned) {
      return value(static_cast<float>(code + 1));
    }
    const auto p = static_cast<float>(code - 127);
    return __builtin_copysignf(value(__builtin_fabsf(p)), p);
  }

  /// `x` relative to the scale; NaN gets the code of 1.
  [[gnu::always_inline]] static uint8_t encoded(float x) {
    const float magnitude = __builtin_fabsf(x);
    const int32_t p = nearest(magnitude < 2.0F ? magnitude : 2.0F);
    if constexpr (!kSigned) {
      const int32_t positive = p > 2 ? p : 2;
      return static_cast<uint8_t>((magnitude > 0 ? positive : p) - 1);
    }
    const int32_t below = p < 127 ? p : 127;  // there is no -1
    return static_cast<uint8_t>(x < 0 ? 127 - below : 127 + p);
  }

 private:
  template <int kDecade>
  [[gnu::always_inline]] static float higher(float p, float best) {
    constexpr DynamicLine kLine = line(kDecade);
    const float value = p * kLine.slope + kLine.start;
    return value > best ? value : best;
  }
  template <int kDecade>
  [[gnu::always_inline]] static float lower(float x, float best) {
    constexpr DynamicLine kLine = line(kDecade);
    const float position = x * kLine.steepness + kLine.offset;
    return position < best ? position : best;
  }
};

/// x[k] = map[codes[k]] scale, at most a block.
template <DynamicMap kMap>
inline void decode(const uint8_t* codes, float scale, int64_t n, float* x) {
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    x[k] = DynamicCode<kMap>::decoded(codes[k]) * scale;
  }
}

/// The element of largest magnitude (NaN is passed over), no further from zero than floats go; zero
/// if it is less than 2^-104.
inline float scale_of(const float* x, int64_t n) {
  float high = 0;
  float low = 0;
#pragma omp simd reduction(max : high) reduction(min : low)
  for (int64_t k = 0; k < n; ++k) {
    high = x[k] > high ? x[k] : high;
    low = x[k] < low ? x[k] : low;
  }
  constexpr float kMost = 0x1.fffffep127F;
  high = high < kMost ? high : kMost;
  low = low > -kMost ? low : -kMost;
  const float scale = high >= -low ? high : low;
  return __builtin_fabsf(scale) < 0x1p-104F ? 0 : scale;
}

/// The codes of at most a block; returns its scale.
template <DynamicMap kMap>
inline float encode(const float* x, int64_t n, uint8_t* codes) {
  const float scale = scale_of(x, n);
  const float inverse = scale == 0 ? 0.0F : 1.0F / scale;
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    codes[k] = DynamicCode<kMap>::encoded(x[k] * inverse);
  }
  return scale;
}

}  // namespace espalier::kernels::ESPALIER_ISA
