#pragma once
// Activation functions and their slopes at one number, for the loops and epilogues of the kernels.
// GELU in the form x s(2u), where s is the logistic function and u = sqrt(2/pi) (x + 0.044715 x^3):
// equal to 0.5 x (1 + tanh u), but one exponential and no cancellation for negative x.
#include "src/kernels/cpu/math.h"
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr float kTwoRoot = 1.5957691216F;  ///< 2 sqrt(2/pi)
inline constexpr float kCubic = 0.044715F;

/// exp(-2u)
[[gnu::always_inline]] inline float gelu_decay(float x) {
  return exp_approx(x * (-kTwoRoot * kCubic * (x * x) - kTwoRoot));
}

[[gnu::always_inline]] inline float activate(Activation kind, float x) {
  switch (kind) {
    case Activation::gelu:
      return x / (1.0F + gelu_decay(x));
    case Activation::relu:  // written so that NaN passes through
      return x < 0.0F ? 0.0F : x;
    case Activation::none:
      break;
  }
  return x;
}

[[gnu::always_inline]] inline float activation_slope(Activation kind, float x) {
  switch (kind) {
    case Activation::gelu: {
      // s + x s (1 - s) 2u', with 1 - s = e s.
      const float e = gelu_decay(x);
      const float s = 1.0F / (1.0F + e);
      const float rise = x * (3.0F * kTwoRoot * kCubic * (x * x) + kTwoRoot);
      return s + (e * s) * s * rise;
    }
    case Activation::relu:
      return x > 0.0F ? 1.0F : (x <= 0.0F ? 0.0F : x);
    case Activation::none:
      break;
  }
  return 1.0F;
}

}  // namespace espalier::kernels::ESPALIER_ISA
