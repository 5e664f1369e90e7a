#pragma once
// Epilogue of a sparse product: adds bias and the previous value to a finished sum, and applies the
// activation or its slope.
#include "src/kernels/cuda/elementwise/activation.h"
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

/// y [tokens, n] and, if `activated` is not null, f(y).
struct SpmmOutput {
  Elements y, activated;
  const float* bias;
  int64_t y_stride, activated_stride;
  Activation activation;
  bool accumulate;

  __device__ __forceinline__ void take(int64_t token, int64_t n, float sum) const {
    const int64_t at = token * y_stride + n;
    sum += bias != nullptr ? bias[n] : 0.0F;
    sum += accumulate ? load(y, at) : 0.0F;
    store(y, at, sum);
    if (activated.data != nullptr) {
      const float stored = load(y, at);  // rounded: f computed again from y has the same bits
      store(activated, token * activated_stride + n, activate(activation, stored));
    }
  }
};

/// dx [tokens, c], times the slope at the preactivation if `before` is not null.
struct SpmmTransposedOutput {
  Elements dx, before;  ///< before: the preactivation, or null
  int64_t dx_stride, before_stride;
  Activation activation;
  bool accumulate;

  __device__ __forceinline__ void take(int64_t token, int64_t c, float sum) const {
    const int64_t at = token * dx_stride + c;
    if (before.data != nullptr) {
      sum *= activation_slope(activation, load(before, token * before_stride + c));
    }
    store(dx, at, sum + (accumulate ? load(dx, at) : 0.0F));
  }
};

template <class Matrix>
SpmmOutput output_of(const SpmmOf<Matrix>& args) {
  return {.y = elements(args.y),
          .activated = elements(args.activated),
          .bias = static_cast<const float*>(args.bias.data),
          .y_stride = args.y.stride,
          .activated_stride = args.activated.stride,
          .activation = args.activation,
          .accumulate = args.accumulate};
}

template <class Matrix>
SpmmTransposedOutput output_of(const SpmmTransposedOf<Matrix>& args) {
  return {.dx = elements(args.dx),
          .before = elements(args.preactivation),
          .dx_stride = args.dx.stride,
          .before_stride = args.preactivation.stride,
          .activation = args.activation,
          .accumulate = args.accumulate};
}

}  // namespace espalier::kernels::ESPALIER_GPU
