#pragma once
// The activation functions (rules/activation.h) with the arithmetic of this instruction set.
#include "src/kernels/cpu/simd/math.h"
#include "src/kernels/rules/activation.h"

namespace espalier::kernels::ESPALIER_ISA {

using rules::None;
using rules::Relu;
using Gelu = rules::Gelu<Math>;
using Silu = rules::Silu<Math>;
using GeluErf = rules::GeluErf<Math>;

/// Calls `body` with a value of the function object's type.
template <class Body>
inline void with_function(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::none:
      return body(None{});
    case Activation::gelu:
      return body(Gelu{});
    case Activation::relu:
      return body(Relu{});
    case Activation::silu:
      return body(Silu{});
    case Activation::gelu_erf:
      return body(GeluErf{});
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
