// GELU in the form x s(2u), where s is the logistic function and u = sqrt(2/pi) (x + 0.044715 x^3):
// equal to 0.5 x (1 + tanh u), but one exponential and no cancellation for negative x.
#include "src/kernels/cpu/loops.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr float kTwoRoot = 1.5957691216F;  ///< 2 sqrt(2/pi)
constexpr float kCubic = 0.044715F;

struct None {
  static float value(float x) { return x; }
  static float slope(float) { return 1.0F; }
};

struct Relu {
  // Written so that NaN passes through.
  static float value(float x) { return x < 0.0F ? 0.0F : x; }
  static float slope(float x) { return x > 0.0F ? 1.0F : (x <= 0.0F ? 0.0F : x); }
};

struct Gelu {
  /// exp(-2u)
  [[gnu::always_inline]] static float decay(float x) {
    return exp_approx(x * (-kTwoRoot * kCubic * (x * x) - kTwoRoot));
  }
  [[gnu::always_inline]] static float value(float x) { return x / (1.0F + decay(x)); }
  /// s + x s (1 - s) 2u', with 1 - s = e s.
  [[gnu::always_inline]] static float slope(float x) {
    const float e = decay(x);
    const float s = 1.0F / (1.0F + e);
    const float rise = x * (3.0F * kTwoRoot * kCubic * (x * x) + kTwoRoot);
    return s + (e * s) * s * rise;
  }
};

template <class F, class T>
void apply(Stream& stream, const ActivationArgs& args) {
  const T* x = elements<T>(args.x);
  T* y = elements<T>(args.y);
  for_ranges(stream.threads(), args.x.count(), kBlock, [&](int64_t first, int64_t n) {
#pragma omp simd
    for (int64_t i = first; i < first + n; ++i) {
      store(y + i, F::value(load(x + i)));
    }
  });
}

template <class F, class T>
void apply_backward(Stream& stream, const ActivationBackwardArgs& args) {
  const T* dy = elements<T>(args.dy);
  const T* x = elements<T>(args.x);
  T* dx = elements<T>(args.dx);
  for_ranges(stream.threads(), args.x.count(), kBlock, [&](int64_t first, int64_t n) {
#pragma omp simd
    for (int64_t i = first; i < first + n; ++i) {
      store(dx + i, load(dy + i) * F::slope(load(x + i)));
    }
  });
}

/// Calls `body` with a value of the function's type.
template <class Body>
void with_function(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::none:
      return body(None{});
    case Activation::gelu:
      return body(Gelu{});
    case Activation::relu:
      return body(Relu{});
  }
}

}  // namespace

void activation(Stream& stream, const ActivationArgs& args) {
  verify(args);
  with_function(args.kind, [&](auto function) {
    with_type(args.x.dtype,
              [&](auto type) { apply<decltype(function), decltype(type)>(stream, args); });
  });
}

void activation_backward(Stream& stream, const ActivationBackwardArgs& args) {
  verify(args);
  with_function(args.kind, [&](auto function) {
    with_type(args.x.dtype,
              [&](auto type) { apply_backward<decltype(function), decltype(type)>(stream, args); });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
