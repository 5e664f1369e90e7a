#pragma once
// The activation functions and their slopes; GELU in the form x s(2u), as in cpu/elementwise/activation.h,
// whose exponential is a power of two here.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

/// exp(-2u), u = sqrt(2/pi) (x + 0.044715 x^3)
__device__ __forceinline__ float gelu_decay(float x) {
  constexpr float kTwoRootLog2 = 2.3022082F;  // 2 sqrt(2/pi) log2(e)
  constexpr float kCubic = 0.044715F;
  return power_of_2(x * (-kTwoRootLog2 * kCubic * (x * x) - kTwoRootLog2));
}

__device__ __forceinline__ float gelu_slope(float beyond) {
  constexpr float kTwoRoot = 1.5957691F;
  constexpr float kCubic = 0.044715F;
  // Beyond 10 it is 0 or 1 to the last bit. Written so that NaN passes through.
  const float x = beyond < -10.0F ? -10.0F : (beyond > 10.0F ? 10.0F : beyond);
  const float e = gelu_decay(x);
  const float s = 1.0F / (1.0F + e);
  return s + (e * s) * s * (x * (3.0F * kTwoRoot * kCubic * (x * x) + kTwoRoot));
}

__device__ __forceinline__ float activate(Activation kind, float x) {
  switch (kind) {
    case Activation::gelu:
      return quick_quotient(x, 1.0F + gelu_decay(x));
    case Activation::relu:
      return x < 0.0F ? 0.0F : x;
    case Activation::none:
      break;
  }
  return x;
}

__device__ __forceinline__ float activation_slope(Activation kind, float x) {
  switch (kind) {
    case Activation::gelu:
      return gelu_slope(x);
    case Activation::relu:
      return x > 0.0F ? 1.0F : (x <= 0.0F ? 0.0F : x);
    case Activation::none:
      break;
  }
  return 1.0F;
}

}  // namespace espalier::kernels::ESPALIER_GPU
