#pragma once
// Scalar functions that the compiler vectorises inside the kernels' loops: element access, the
// exponential. Compiled once per instruction set; nothing here may be a shared (cross-ISA) inline
// function.
#include <omp.h>

#include <cstdint>

#include "src/core/types.h"

namespace espalier::kernels::ESPALIER_ISA {

[[gnu::always_inline]] inline float load(const float* x) { return *x; }
[[gnu::always_inline]] inline float load(const bf16* x) {
  return __builtin_bit_cast(float, uint32_t{x->bits} << 16);
}

[[gnu::always_inline]] inline float load(const fp16* x) { return to_float(*x); }

[[gnu::always_inline]] inline void store(float* x, float value) { *x = value; }
/// Rounds to nearest, ties to even; NaN stays NaN (a select, so that the loop has no branches).
[[gnu::always_inline]] inline void store(bf16* x, float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  x->bits = static_cast<uint16_t>((value != value ? 0x7fc00000U : rounded) >> 16);
}
[[gnu::always_inline]] inline void store(fp16* x, float value) { *x = to_fp16(value); }

/// e^x for x below 88.37 (or NaN, which stays NaN) with a relative error of at most 1e-7; 0 below
/// -87.3. x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q minimax of degree 4 (error
/// 3e-9).
[[gnu::always_inline]] inline float exp_below(float x) {
  constexpr float kRound = 12582912.0F + 127.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0x1.62e4p-1F) - n * 1.42860677e-6F;  // ln 2 in two parts
  float p = 1.38145394e-3F;
  p = p * r + 8.36874545e-3F;
  p = p * r + 4.16683890e-2F;
  p = p * r + 1.66665211e-1F;
  p = p * r + 4.99999940e-1F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // The low bits of `shifted` are n + 127; shifted to the exponent, they are the float 2^n.
  const float power = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, shifted) << 23);
  return x < -87.3F ? 0.0F : p * power;
}

/// e^x for all x: infinite above 88.37.
[[gnu::always_inline]] inline float exp_approx(float x) {
  const float result = exp_below(x);
  return x > 88.37F ? __builtin_inff() : result;
}

/// Math of the shared rules (rules/shared.h).
struct Math {
  [[gnu::always_inline]] static float root(float x) { return __builtin_sqrtf(x); }
  [[gnu::always_inline]] static float quotient(float a, float b) { return a / b; }
  [[gnu::always_inline]] static float exponential(float x) { return exp_below(x); }
  [[gnu::always_inline]] static float logarithm(float x) { return __builtin_logf(x); }
  /// exp(-2u), u = sqrt(2/pi) (x + 0.044715 x^3)
  [[gnu::always_inline]] static float gelu_decay(float x) {
    constexpr float kTwoRoot = 1.5957691216F;  // 2 sqrt(2/pi)
    constexpr float kCubic = 0.044715F;
    return exp_approx(x * (-kTwoRoot * kCubic * (x * x) - kTwoRoot));
  }
};

[[gnu::always_inline]] inline int thread_index() { return omp_get_thread_num(); }

}  // namespace espalier::kernels::ESPALIER_ISA
