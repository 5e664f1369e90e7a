#pragma once
// Device arithmetic for the shared rules (rules/shared.h).
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

struct Math {
  __device__ static __forceinline__ float root(float x) { return quick_root(x); }
  __device__ static __forceinline__ float quotient(float a, float b) {
    return quick_quotient(a, b);
  }
  __device__ static __forceinline__ float exponential(float x) {
    return power_of_2(x * 1.44269504F);
  }
  __device__ static __forceinline__ float logarithm(float x) { return logf(x); }
  /// exp(-2u), u = sqrt(2/pi) (x + 0.044715 x^3), as a power of two.
  __device__ static __forceinline__ float gelu_decay(float x) {
    constexpr float kTwoRootLog2 = 2.3022082F;  // 2 sqrt(2/pi) log2(e)
    constexpr float kCubic = 0.044715F;
    return power_of_2(x * (-kTwoRootLog2 * kCubic * (x * x) - kTwoRootLog2));
  }
};

}  // namespace espalier::kernels::ESPALIER_GPU
