#pragma once
// Scalar functions that every CPU table and the CUDA table compile from one source.
//
//   ESPALIER_RULE float f(float x) { … }
//
// On the CPU such a function is always inlined: no copy of one instruction set can be linked into
// the table of another (cpu/table.h). Sources that must give the same bits everywhere are compiled
// without contraction of products and sums (see CMakeLists.txt).
#include <cstdint>

#ifdef ESPALIER_GPU
#include <simt.h>
#endif

#ifdef __CUDACC__
#define ESPALIER_RULE __device__ __forceinline__
#define ESPALIER_UNROLL _Pragma("unroll")
#else
#define ESPALIER_RULE [[gnu::always_inline]] inline
#define ESPALIER_UNROLL _Pragma("GCC unroll 16")
#endif

namespace espalier::kernels {

/// Bits of the smallest number that is not finite, and of the NaN that kernels make.
inline constexpr uint32_t kInfiniteBits = 0x7f800000U;
inline constexpr uint32_t kNaNBits = 0x7fc00000U;
inline constexpr float kLargest = 0x1.fffffep127F;

#ifdef __CUDACC__
ESPALIER_RULE uint32_t bits_of(float x) { return __float_as_uint(x); }
ESPALIER_RULE float float_of(uint32_t bits) { return __uint_as_float(bits); }
ESPALIER_RULE float magnitude_of(float x) { return fabsf(x); }
#else
ESPALIER_RULE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
ESPALIER_RULE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
ESPALIER_RULE float magnitude_of(float x) { return __builtin_fabsf(x); }
#endif

}  // namespace espalier::kernels
