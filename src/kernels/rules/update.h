#pragma once
// The rules of optimizers (UpdateRule; formulas in operations/optimizer.h): the update of one
// element and its moments, with the call's constants folded. A rule has
//
//   kName, kSecondMoment
//   kFlops                             flops of an element
//   static Rule of(const UpdateArgs&)
//   float scale                        factor of the gradient
//   float next<Math>(w, gradient, moment1, moment2)   returns the new w and updates the moments in
//                                                     place; a rule with one moment does not read
//                                                     moment2
//
// Math: root(x) = sqrt(x), quotient(a, b) = a / b.
// To add a rule: its name in UpdateRule, its struct here, its line in with_rule.
#include "src/kernels/operations/optimizer.h"
#include "src/kernels/rules/shared.h"

namespace espalier::kernels::rules {

struct AdamW {
  static constexpr const char* kName = "adamw";
  static constexpr bool kSecondMoment = true;
  static constexpr double kFlops = 15;
  float scale, beta1, beta2, epsilon;
  float keep;  ///< 1 - lr weight_decay
  float step;  ///< lr / bias_correction1
  float root;  ///< 1 / sqrt(bias_correction2)

  [[gnu::always_inline]] static inline AdamW of(const UpdateArgs& args) {
    return {.scale = args.scale,
            .beta1 = args.beta1,
            .beta2 = args.beta2,
            .epsilon = args.epsilon,
            .keep = 1.0F - args.lr * args.weight_decay,
            .step = args.lr / args.bias_correction1,
            .root = 1.0F / __builtin_sqrtf(args.bias_correction2)};
  }
  template <class Math>
  ESPALIER_RULE float next(float w, float gradient, float* moment1, float* moment2) const {
    const float g = gradient * scale;
    const float m = beta1 * *moment1 + (1.0F - beta1) * g;
    const float v = beta2 * *moment2 + (1.0F - beta2) * (g * g);
    *moment1 = m;
    *moment2 = v;
    return w * keep - Math::quotient(step * m, Math::root(v) * root + epsilon);
  }
};

struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr bool kSecondMoment = false;
  static constexpr double kFlops = 7;
  float scale, lr, momentum, decay;

  [[gnu::always_inline]] static inline Sgd of(const UpdateArgs& args) {
    return {.scale = args.scale, .lr = args.lr, .momentum = args.beta1, .decay = args.weight_decay};
  }
  template <class Math>
  ESPALIER_RULE float next(float w, float gradient, float* moment1, float*) const {
    const float m = momentum * *moment1 + gradient * scale + decay * w;
    *moment1 = m;
    return w - lr * m;
  }
};

/// SGD with Nesterov's momentum. Its own rule, so that the bits of Sgd do not depend on it.
struct Nesterov {
  static constexpr const char* kName = "nesterov";
  static constexpr bool kSecondMoment = false;
  static constexpr double kFlops = 9;
  float scale, lr, momentum, decay;

  [[gnu::always_inline]] static inline Nesterov of(const UpdateArgs& args) {
    return {.scale = args.scale, .lr = args.lr, .momentum = args.beta1, .decay = args.weight_decay};
  }
  template <class Math>
  ESPALIER_RULE float next(float w, float gradient, float* moment1, float*) const {
    const float d = gradient * scale + decay * w;
    const float m = momentum * *moment1 + d;
    *moment1 = m;
    return w - lr * (d + momentum * m);
  }
};

struct Lion {
  static constexpr const char* kName = "lion";
  static constexpr bool kSecondMoment = false;
  static constexpr double kFlops = 11;
  float scale, beta1, beta2, lr;
  float keep;  ///< 1 - lr weight_decay

  [[gnu::always_inline]] static inline Lion of(const UpdateArgs& args) {
    return {.scale = args.scale,
            .beta1 = args.beta1,
            .beta2 = args.beta2,
            .lr = args.lr,
            .keep = 1.0F - args.lr * args.weight_decay};
  }
  template <class Math>
  ESPALIER_RULE float next(float w, float gradient, float* moment1, float*) const {
    const float g = gradient * scale;
    const float m = *moment1;
    const float u = beta1 * m + (1.0F - beta1) * g;
    *moment1 = beta2 * m + (1.0F - beta2) * g;
    return w * keep - (u > 0.0F ? lr : (u < 0.0F ? -lr : u));  // NaN propagates
  }
};

struct Average {
  static constexpr const char* kName = "average";
  static constexpr bool kSecondMoment = false;
  static constexpr double kFlops = 2;
  float scale;  ///< not used: `factor` decides only whether anything changes
  float rate;

  [[gnu::always_inline]] static inline Average of(const UpdateArgs& args) {
    return {.scale = args.scale, .rate = args.lr};
  }
  template <class Math>
  ESPALIER_RULE float next(float w, float gradient, float*, float*) const {
    return w - rate * gradient;
  }
};

/// Calls body(rule) with a value of the rule's type.
template <class Body>
[[gnu::always_inline]] inline auto with_rule(UpdateRule rule, const Body& body) {
  switch (rule) {
    case UpdateRule::sgd:
      return body(Sgd{});
    case UpdateRule::lion:
      return body(Lion{});
    case UpdateRule::average:
      return body(Average{});
    case UpdateRule::nesterov:
      return body(Nesterov{});
    case UpdateRule::adamw:
      break;
  }
  return body(AdamW{});
}

}  // namespace espalier::kernels::rules

namespace espalier::kernels {

[[gnu::always_inline]] inline bool has_second_moment(UpdateRule rule) {
  return rules::with_rule(rule, [](auto one) { return decltype(one)::kSecondMoment; });
}
[[gnu::always_inline]] inline double flops_of(UpdateRule rule) {
  return rules::with_rule(rule, [](auto one) { return decltype(one)::kFlops; });
}

}  // namespace espalier::kernels
