#pragma once
// Element-wise activation functions, alone and as gates.
#include <cstdint>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// - gelu: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in GPT-2
/// - silu: x / (1 + exp(-x))
/// - gelu_erf: x Phi(x), Phi the distribution function of the normal distribution
enum class Activation : uint8_t { none, gelu, relu, silu, gelu_erf };

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

/// y = f(gate) up, element-wise (Shazeer, GLU Variants Improve Transformer, 2020). All any [R, C],
/// same type, rows may be strided; y may be gate or up.
struct GatedActivationArgs {
  Activation kind = Activation::silu;
  Tensor gate, up, y;
};

/// dgate = dy up f'(gate); dup = dy f(gate). All any [R, C], same type, rows may be strided; each
/// result may be any operand, but not the other result.
struct GatedActivationBackwardArgs {
  Activation kind = Activation::silu;
  Tensor dy, gate, up, dgate, dup;
};

}  // namespace espalier::kernels
