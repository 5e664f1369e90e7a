#pragma once
// CUDA primitives of kernels. Tests include another file of this name (tests/simt/include/simt.h)
// that defines the same names for the host.
#include <cuda_runtime.h>

#include "src/kernels/cuda/device/queue.h"

namespace espalier::kernels::ESPALIER_GPU {

using DeviceQueue = CudaQueue;

#ifdef __CUDACC__
/// The launch's `shared_bytes`, 16-byte aligned.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ float4 espalier_dynamic_shared[];
  return reinterpret_cast<T*>(espalier_dynamic_shared);
}

/// Stores 16 bytes at once. nvcc may compile an assignment to four stores, and each of them would
/// touch all sectors that the warp writes.
__device__ __forceinline__ void store_vector(float* to, float4 v) {
  asm volatile("st.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

/// sqrt(x) (quick_root) and a / b (quick_quotient), to 2 units in the last place. Numbers below
/// 2^-126 count as 0; |b| is below 2^126.
__device__ __forceinline__ float quick_root(float x) {
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}
/// 1 / sqrt(x), with the same precision.
__device__ __forceinline__ float quick_inverse_root(float x) {
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}
__device__ __forceinline__ float quick_quotient(float a, float b) { return __fdividef(a, b); }
/// 2^x, to 2 units in the last place; 0 if 2^x is below 2^-126.
__device__ __forceinline__ float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
/// The value of IEEE half-precision bits.
__device__ __forceinline__ float from_fp16(uint32_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(bits)));
  return x;
}
/// Rounds both to bf16, `low` in the lower half, as to_bf16 of core/types.h except for the sign of
/// a NaN.
__device__ __forceinline__ uint32_t to_bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return __vmins2(pair, 0x7fc07fc0U);  // the instruction returns 0x7fff for a NaN
}
/// Same result as to_fp16 of core/types.h, including NaN.
__device__ __forceinline__ uint32_t to_fp16_bits(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return x != x ? 0x7e00U | (__float_as_uint(x) >> 16 & 0x8000U) : bits;
}

/// True if the device has the next two instructions: compute capability 8.9 or later.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define ESPALIER_CONVERTS_FP8
inline constexpr bool kConvertsFp8 = true;
#else
inline constexpr bool kConvertsFp8 = false;
#endif
/// Codes of E5M2 or E4M3 (5 or 4 exponent bits), to nearest even, `low` in the lower byte. Values
/// beyond the largest number become the largest number.
template <int kExponentBits>
__device__ __forceinline__ uint32_t to_fp8_pair(float low, float high) {
  uint16_t pair = 0;
#ifdef ESPALIER_CONVERTS_FP8
  if constexpr (kExponentBits == 5) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  }
#endif
  return pair;
}
/// Values of two codes, in fp16.
template <int kExponentBits>
__device__ __forceinline__ uint32_t from_fp8_pair(uint32_t codes) {
  uint32_t halves = 0;
#ifdef ESPALIER_CONVERTS_FP8
  if constexpr (kExponentBits == 5) {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  } else {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  }
#endif
  return halves;
}
#endif

}  // namespace espalier::kernels::ESPALIER_GPU
