#pragma once
// Element-wise activation functions.
#include <cstdint>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// gelu: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2.
enum class Activation : uint8_t { none, gelu, relu };

/// y = f(x); any, same type; y may be x.
struct ActivationArgs {
  Activation kind = Activation::gelu;
  Tensor x, y;
};

/// dx = dy f'(x); dx may be dy.
struct ActivationBackwardArgs {
  Activation kind = Activation::gelu;
  Tensor dy, x, dx;
};

}  // namespace espalier::kernels
