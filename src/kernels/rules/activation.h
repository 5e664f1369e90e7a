#pragma once
// The activation functions and their slopes, element by element (ActivationArgs), for loops that
// compilers vectorise. NaN propagates.
//
// GELU in the form x s(2u), where s is the logistic function and u = sqrt(2/pi) (x + 0.044715 x^3):
// equal to 0.5 x (1 + tanh u), but one exponential and no cancellation for negative x.
// Math: gelu_decay(x) = exp(-2u), quotient(a, b) = a / b.
#include "src/kernels/operations/activation.h"
#include "src/kernels/rules/shared.h"

namespace espalier::kernels::rules {

inline constexpr float kTwoRoot = 1.5957691216F;  ///< 2 sqrt(2/pi)
inline constexpr float kCubic = 0.044715F;

struct None {
  ESPALIER_RULE static float value(float x) { return x; }
  ESPALIER_RULE static float slope(float) { return 1.0F; }
};

struct Relu {
  ESPALIER_RULE static float value(float x) { return x < 0.0F ? 0.0F : x; }
  ESPALIER_RULE static float slope(float x) { return x > 0.0F ? 1.0F : (x <= 0.0F ? 0.0F : x); }
};

template <class Math>
struct Gelu {
  ESPALIER_RULE static float value(float x) {
    return Math::quotient(x, 1.0F + Math::gelu_decay(x));
  }
  /// s + x s (1 - s) 2u', with 1 - s = e s. Beyond 10 the slope is 0 or 1 to the last bit, and e
  /// would overflow.
  ESPALIER_RULE static float slope(float beyond) {
    const float x = beyond < -10.0F ? -10.0F : (beyond > 10.0F ? 10.0F : beyond);
    const float e = Math::gelu_decay(x);
    const float s = 1.0F / (1.0F + e);
    const float rise = x * (3.0F * kTwoRoot * kCubic * (x * x) + kTwoRoot);
    return s + (e * s) * s * rise;
  }
};

/// f(x) and f'(x).
template <class Math>
ESPALIER_RULE float activate(Activation kind, float x) {
  return kind == Activation::gelu   ? Gelu<Math>::value(x)
         : kind == Activation::relu ? Relu::value(x)
                                    : None::value(x);
}
template <class Math>
ESPALIER_RULE float activation_slope(Activation kind, float x) {
  return kind == Activation::gelu   ? Gelu<Math>::slope(x)
         : kind == Activation::relu ? Relu::slope(x)
                                    : None::slope(x);
}

}  // namespace espalier::kernels::rules
