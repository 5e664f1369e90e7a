#pragma once
// Scalar pieces that the compiler vectorises inside the kernels' loops: element access, the exponential.
// Compiled once an instruction set; nothing here may be a shared (cross-ISA) inline function.
#include <omp.h>

#include <cstdint>

#include "src/core/types.h"

namespace espalier::kernels::ESPALIER_ISA {

[[gnu::always_inline]] inline float load(const float* x) { return *x; }
[[gnu::always_inline]] inline float load(const bf16* x) {
  return __builtin_bit_cast(float, uint32_t{x->bits} << 16);
}

[[gnu::always_inline]] inline void store(float* x, float value) { *x = value; }
/// To nearest, ties to even; NaN stays NaN (the select keeps the loop free of branches).
[[gnu::always_inline]] inline void store(bf16* x, float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40U;
  x->bits = static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

/// e^x for x in [-87.3, 88.7], 0-ish and huge beyond; relative error below 2e-7; NaN stays NaN.
[[gnu::always_inline]] inline float exp_approx(float x) {
  x = x < -87.3F ? -87.3F : x;
  x = x > 88.7F ? 88.7F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const int32_t exponent = __builtin_bit_cast(int32_t, shifted) << 23;
  return __builtin_bit_cast(float, __builtin_bit_cast(int32_t, p) + exponent);
}

[[gnu::always_inline]] inline int thread_index() { return omp_get_thread_num(); }

}  // namespace espalier::kernels::ESPALIER_ISA
