#pragma once
// The master copy of a 16-bit value: fp32 split into two halves, and stochastic rounding where
// there is no low half.
#include "src/kernels/rules/shared.h"

namespace espalier::kernels {

/// An fp32 number w in two halves: `high` is w rounded to nearest, `low` (an int16) is the
/// difference of magnitudes, |w| - |high|, in the units below. Every NaN becomes the same NaN.
///   bf16  ties away from zero; bits of w = (high << 16) + low: exact for every number
///   fp16  ties to even; |w| = |high| + low 2^(e - 25), e = high's exponent, at least -14. Exact
///         from 2^-16 to 65,520: |low| <= 2^14, and w is a multiple of the unit. Below 2^-16, w is
///         first rounded to a multiple of 2^-39. Beyond 65,520, w is infinite. Splitting the joined
///         number gives the same halves.
template <class High>
struct SplitFloat {
  High high;
  uint16_t low = 0;
};
template <class High>
ESPALIER_RULE SplitFloat<High> split(float w);
/// `high`: the upper half as a number.
template <class High>
ESPALIER_RULE float join_number(float high, uint16_t low);
template <class High>
ESPALIER_RULE float join(High high, uint16_t low) {
  return join_number<High>(number_of(high), low);
}

template <>
ESPALIER_RULE SplitFloat<bf16> split(float w) {
  // Rounding would turn some NaNs into numbers.
  const uint32_t bits = w != w ? kNaNBits : bits_of(w);
  return {bf16{static_cast<uint16_t>((bits + 0x8000U) >> 16)}, static_cast<uint16_t>(bits)};
}
template <>
ESPALIER_RULE float join_number<bf16>(float high, uint16_t low) {
  return float_of(bits_of(high) + static_cast<uint32_t>(int32_t{static_cast<int16_t>(low)}));
}

/// The exponent of a half's magnitude with fp32's bias; subnormal halves have that of 2^-14.
ESPALIER_RULE uint32_t split_exponent(float magnitude) {
  const uint32_t exponent = bits_of(magnitude) >> 23;
  return exponent < 113U ? 113U : exponent;
}

template <>
ESPALIER_RULE SplitFloat<fp16> split(float w) {
  const float given = magnitude_of(w);
  // Adding 2^-16 rounds to multiples of 2^-39.
  const float size = given < 0x1p-16F ? (given + 0x1p-16F) - 0x1p-16F : given;
  const uint32_t half = w != w ? 0x7e00U : to_half(size);
  const float high = from_half(half);
  const float units = float_of((127U + 127U + 25U - split_exponent(high)) << 23);
  const float rest = size < 65520.0F ? size - high : 0.0F;
  const uint32_t sign = w != w ? 0U : bits_of(w) >> 16 & 0x8000U;
  return {fp16{static_cast<uint16_t>(half | sign)},
          static_cast<uint16_t>(static_cast<int32_t>(rest * units))};
}
template <>
ESPALIER_RULE float join_number<fp16>(float high, uint16_t low) {
  const float size = magnitude_of(high);
  const float unit = float_of((split_exponent(size) - 25U) << 23);
  const float w = size + static_cast<float>(int32_t{static_cast<int16_t>(low)}) * unit;
  return float_of(bits_of(w) | (bits_of(high) & 0x80000000U));
}

/// Stochastic rounding: w rounded by the upper bits of `word` to one of the two neighbours, with
/// probabilities that make the expectation exact. A random number below one unit in the last place
/// is added to the magnitude, then lower bits are truncated. Representable numbers, infinities and
/// NaN (as the positive one) are unchanged. Beyond the largest finite number, rounding is to
/// nearest, so that a random draw cannot make w infinite.
///   bf16  uses 16 bits of the word, as many as w loses: P(away from zero) is exact
///   fp16  from 2^-14: 13 bits, exact. Below: 21 bits, after w is truncated to a multiple of 2^-45,
///         which changes no w from 2^-22 on
template <class Half>
ESPALIER_RULE Half round_at_random(float w, uint32_t word);

template <>
ESPALIER_RULE bf16 round_at_random(float w, uint32_t word) {
  // The addition would turn some NaNs into numbers.
  const uint32_t bits = w != w ? kNaNBits : bits_of(w);
  const uint32_t added = (bits & 0x7fffffffU) > 0x7f7f0000U ? 0x8000U : word >> 16;
  return bf16{static_cast<uint16_t>((bits + added) >> 16)};
}

template <>
ESPALIER_RULE fp16 round_at_random(float w, uint32_t word) {
  const uint32_t bits = bits_of(w);
  const uint32_t magnitude = bits & 0x7fffffffU;
  // Bias 127 becomes 15; beyond 65,504 half a unit is added.
  const uint32_t added = magnitude > 0x477fe000U ? 0x1000U : word >> 19;
  const uint32_t normal = (magnitude - (112U << 23) + added) >> 13;
  // Below 2^-14 the unit is 2^-24, which is 2^21 units of `counted`.
  const bool is_small = magnitude < 0x38800000U;
  const float size = is_small ? magnitude_of(w) : 0.0F;
  const auto counted = static_cast<uint32_t>(static_cast<int32_t>(size * 0x1p45F));
  uint32_t half = is_small ? (counted + (word >> 11)) >> 21 : normal;
  half = magnitude >= 0x477ff000U ? 0x7c00U : half;
  half |= bits >> 16 & 0x8000U;
  half = magnitude > kInfiniteBits ? 0x7e00U : half;
  return fp16{static_cast<uint16_t>(half)};
}

}  // namespace espalier::kernels
