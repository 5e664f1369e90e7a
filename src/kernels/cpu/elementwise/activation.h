#pragma once
// The activation functions and their slopes, one element at a time, for loops that the compiler
// vectorises.
// GELU in the form x s(2u), where s is the logistic function and u = sqrt(2/pi) (x + 0.044715 x^3):
// equal to 0.5 x (1 + tanh u), but one exponential and no cancellation for negative x.
#include "src/kernels/cpu/simd/math.h"
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr float kTwoRoot = 1.5957691216F;  ///< 2 sqrt(2/pi)
inline constexpr float kCubic = 0.044715F;

struct None {
  [[gnu::always_inline]] static float value(float x) { return x; }
  [[gnu::always_inline]] static float slope(float) { return 1.0F; }
};

struct Relu {
  // Written so that NaN passes through.
  [[gnu::always_inline]] static float value(float x) { return x < 0.0F ? 0.0F : x; }
  [[gnu::always_inline]] static float slope(float x) {
    return x > 0.0F ? 1.0F : (x <= 0.0F ? 0.0F : x);
  }
};

struct Gelu {
  /// exp(-2u)
  [[gnu::always_inline]] static float decay(float x) {
    return exp_approx(x * (-kTwoRoot * kCubic * (x * x) - kTwoRoot));
  }
  [[gnu::always_inline]] static float value(float x) { return x / (1.0F + decay(x)); }
  /// s + x s (1 - s) 2u', with 1 - s = e s. Beyond 10 it is 0 or 1 to the last bit; there e would
  /// overflow. Written so that NaN passes through.
  [[gnu::always_inline]] static float slope(float beyond) {
    const float x = beyond < -10.0F ? -10.0F : (beyond > 10.0F ? 10.0F : beyond);
    const float e = decay(x);
    const float s = 1.0F / (1.0F + e);
    const float rise = x * (3.0F * kTwoRoot * kCubic * (x * x) + kTwoRoot);
    return s + (e * s) * s * rise;
  }
};

/// f(x) and f'(x) for a kind that is known when compiled.
[[gnu::always_inline]] inline float activate(Activation kind, float x) {
  return kind == Activation::gelu   ? Gelu::value(x)
         : kind == Activation::relu ? Relu::value(x)
                                    : None::value(x);
}
[[gnu::always_inline]] inline float activation_slope(Activation kind, float x) {
  return kind == Activation::gelu   ? Gelu::slope(x)
         : kind == Activation::relu ? Relu::slope(x)
                                    : None::slope(x);
}

/// Calls `body` with a value of the function's type.
template <class Body>
inline void with_function(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::none:
      return body(None{});
    case Activation::gelu:
      return body(Gelu{});
    case Activation::relu:
      return body(Relu{});
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
