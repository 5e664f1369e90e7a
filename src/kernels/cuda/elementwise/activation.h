#pragma once
// Activation functions (rules/activation.h) in device arithmetic.
#include "src/kernels/cuda/simt/math.h"
#include "src/kernels/rules/activation.h"

namespace espalier::kernels::ESPALIER_GPU {

__device__ __forceinline__ float activate(Activation kind, float x) {
  return rules::activate<Math>(kind, x);
}
__device__ __forceinline__ float activation_slope(Activation kind, float x) {
  return rules::activation_slope<Math>(kind, x);
}
__device__ __forceinline__ rules::Activated activate_both(Activation kind, float x) {
  return rules::activate_both<Math>(kind, x);
}

}  // namespace espalier::kernels::ESPALIER_GPU
