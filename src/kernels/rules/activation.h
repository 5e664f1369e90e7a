#pragma once
// The activation functions and their slopes, element by element (ActivationArgs), for loops that
// compilers vectorise. `both` shares the exponential of value and slope. NaN propagates.
//
// GELU in the form x s(2u), where s is the logistic function and u = sqrt(2/pi) (x + 0.044715 x^3):
// equal to 0.5 x (1 + tanh u), but one exponential and no cancellation for negative x.
// Math: gelu_decay(x) = exp(-2u), quotient(a, b) = a / b, exponential(x) = e^x for x <= 0.
#include "src/kernels/operations/activation.h"
#include "src/kernels/rules/shared.h"

namespace espalier::kernels::rules {

inline constexpr float kTwoRoot = 1.5957691216F;  ///< 2 sqrt(2/pi)
inline constexpr float kCubic = 0.044715F;

/// f(x) and f'(x).
struct Activated {
  float value, slope;
};

struct None {
  ESPALIER_RULE static float value(float x) { return x; }
  ESPALIER_RULE static float slope(float) { return 1.0F; }
  ESPALIER_RULE static Activated both(float x) { return {x, 1.0F}; }
};

struct Relu {
  ESPALIER_RULE static float value(float x) { return x < 0.0F ? 0.0F : x; }
  ESPALIER_RULE static float slope(float x) { return x > 0.0F ? 1.0F : (x <= 0.0F ? 0.0F : x); }
  ESPALIER_RULE static Activated both(float x) { return {value(x), slope(x)}; }
};

template <class Math>
struct Gelu {
  ESPALIER_RULE static float value(float x) {
    return Math::quotient(x, 1.0F + Math::gelu_decay(x));
  }
  ESPALIER_RULE static float slope(float x) { return both(x).slope; }
  /// The slope is s + x s (1 - s) 2u', with 1 - s = e s. Beyond 10 it is 0 or 1 to the last bit, s
  /// is 1 or 1.2e-38, and e would overflow.
  ESPALIER_RULE static Activated both(float beyond) {
    const float x = beyond < -10.0F ? -10.0F : (beyond > 10.0F ? 10.0F : beyond);
    const float e = Math::gelu_decay(x);
    const float s = 1.0F / (1.0F + e);
    const float rise = x * (3.0F * kTwoRoot * kCubic * (x * x) + kTwoRoot);
    return {beyond * s, s + (e * s) * s * rise};
  }
};

/// x s with s = 1 / (1 + exp(-x)), from e = exp(-|x|), which cannot overflow.
template <class Math>
struct Silu {
  ESPALIER_RULE static float value(float x) {
    const float e = Math::exponential(-magnitude_of(x));
    return Math::quotient(x < 0.0F ? x * e : x, 1.0F + e);
  }
  /// s + x s (1 - s)
  ESPALIER_RULE static float slope(float x) { return both(x).slope; }
  ESPALIER_RULE static Activated both(float x) {
    const float e = Math::exponential(-magnitude_of(x));
    const float r = Math::quotient(1.0F, 1.0F + e);
    const float s = x < 0.0F ? e * r : r;
    const float rest = x < 0.0F ? r : e * r;
    return {x * s, s + x * s * rest};
  }
};

/// x Phi(x). For a = |x|: Phi(-a) = exp(-a²/2) t q(t) with t = 1 / (1 + 0.3 a); q has degree 7,
/// relative error 1.3e-7 up to a = 13.3, where the exponential ends.
template <class Math>
struct GeluErf {
  ESPALIER_RULE static float value(float x) { return x * at(x).phi; }
  /// Phi(x) + x exp(-x²/2) / sqrt(2 pi)
  ESPALIER_RULE static float slope(float x) { return both(x).slope; }
  ESPALIER_RULE static Activated both(float x) {
    const Normal normal = at(x);
    return {x * normal.phi, normal.phi + x * (0.39894228F * normal.decay)};
  }

 private:
  struct Normal {
    float phi, decay;  ///< Phi(x), exp(-x²/2)
  };
  ESPALIER_RULE static Normal at(float x) {
    const float decay = Math::exponential(-0.5F * x * x);
    const float t = Math::quotient(1.0F, 1.0F + 0.3F * magnitude_of(x));
    float q = 0.03603610F;
    q = q * t - 0.15871278F;
    q = q * t + 0.20896317F;
    q = q * t - 0.05609459F;
    q = q * t + 0.12984273F;
    q = q * t + 0.09952327F;
    q = q * t + 0.12081686F;
    q = q * t + 0.11962517F;
    const float tail = decay * (t * q);
    return {x < 0.0F ? tail : 1.0F - tail, decay};
  }
};

/// f(x) and f'(x).
template <class Math>
ESPALIER_RULE float activate(Activation kind, float x) {
  return kind == Activation::gelu       ? Gelu<Math>::value(x)
         : kind == Activation::relu     ? Relu::value(x)
         : kind == Activation::silu     ? Silu<Math>::value(x)
         : kind == Activation::gelu_erf ? GeluErf<Math>::value(x)
                                        : None::value(x);
}
template <class Math>
ESPALIER_RULE float activation_slope(Activation kind, float x) {
  return kind == Activation::gelu       ? Gelu<Math>::slope(x)
         : kind == Activation::relu     ? Relu::slope(x)
         : kind == Activation::silu     ? Silu<Math>::slope(x)
         : kind == Activation::gelu_erf ? GeluErf<Math>::slope(x)
                                        : None::slope(x);
}
template <class Math>
ESPALIER_RULE Activated activate_both(Activation kind, float x) {
  return kind == Activation::gelu       ? Gelu<Math>::both(x)
         : kind == Activation::relu     ? Relu::both(x)
         : kind == Activation::silu     ? Silu<Math>::both(x)
         : kind == Activation::gelu_erf ? GeluErf<Math>::both(x)
                                        : None::both(x);
}

}  // namespace espalier::kernels::rules
