#pragma once
// Stochastic rounding of fp32 to 16 bits: to one of the two neighbours, with probabilities that
// make the expectation exact. A random number below one unit in the last place is added to the
// magnitude, then lower bits are truncated.
#include "src/core/types.h"

namespace espalier {

/// w rounded by the upper bits of `word`. Representable numbers, infinities and NaN (as the
/// positive one) are unchanged. Beyond the largest finite number, rounding is to nearest, so that a
/// random draw cannot make w infinite.
///   bf16  uses 16 bits of the word, as many as w loses: P(away from zero) is exact
///   fp16  from 2^-14: 13 bits, exact. Below: 21 bits, after w is truncated to a multiple of 2^-45,
///         which changes no w from 2^-22 on
template <class Half>
Half round_at_random(float w, uint32_t word);

// Always inlined, so that each kernel compiles them for its own instruction set.

template <>
[[gnu::always_inline]] inline bf16 round_at_random(float w, uint32_t word) {
  // The addition would turn some NaNs into numbers.
  const uint32_t bits = w != w ? 0x7fc00000U : __builtin_bit_cast(uint32_t, w);
  const uint32_t added = (bits & 0x7fffffffU) > 0x7f7f0000U ? 0x8000U : word >> 16;
  return bf16{static_cast<uint16_t>((bits + added) >> 16)};
}

template <>
[[gnu::always_inline]] inline fp16 round_at_random(float w, uint32_t word) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, w);
  const uint32_t magnitude = bits & 0x7fffffffU;
  // Bias 127 becomes 15; beyond 65,504 half a unit is added.
  const uint32_t added = magnitude > 0x477fe000U ? 0x1000U : word >> 19;
  const uint32_t normal = (magnitude - (112U << 23) + added) >> 13;
  // Below 2^-14 the unit is 2^-24, which is 2^21 units of `counted`.
  const bool is_small = magnitude < 0x38800000U;
  const float size = is_small ? __builtin_bit_cast(float, magnitude) : 0.0F;
  const auto counted = static_cast<uint32_t>(static_cast<int32_t>(size * 0x1p45F));
  uint32_t half = is_small ? (counted + (word >> 11)) >> 21 : normal;
  half = magnitude >= 0x477ff000U ? 0x7c00U : half;
  half |= bits >> 16 & 0x8000U;
  half = magnitude > 0x7f800000U ? 0x7e00U : half;
  return fp16{static_cast<uint16_t>(half)};
}

}  // namespace espalier
