#pragma once
// Scalar functions compiled from one source for every CPU table and the CUDA table.
//
//   ESPALIER_RULE float f(float x) { … }
//
// On the CPU such a function is always inlined, so that no copy of one instruction set is linked
// into the table of another (cpu/table.h). Sources whose bits must be equal everywhere are compiled
// without contraction of products and sums (see CMakeLists.txt).
#include "src/core/types.h"

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

/// Bits of infinity, the smallest non-finite magnitude, and of the NaN that kernels return.
inline constexpr uint32_t kInfiniteBits = 0x7f800000U;
inline constexpr uint32_t kNaNBits = 0x7fc00000U;
inline constexpr float kLargest = 0x1.fffffep127F;

#ifdef __CUDACC__
ESPALIER_RULE uint32_t bits_of(float x) { return __float_as_uint(x); }
ESPALIER_RULE float float_of(uint32_t bits) { return __uint_as_float(bits); }
ESPALIER_RULE float magnitude_of(float x) { return fabsf(x); }
ESPALIER_RULE float larger(float a, float b) { return fmaxf(a, b); }
ESPALIER_RULE float smaller(float a, float b) { return fminf(a, b); }
#else
ESPALIER_RULE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
ESPALIER_RULE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
ESPALIER_RULE float magnitude_of(float x) { return __builtin_fabsf(x); }
ESPALIER_RULE float larger(float a, float b) { return a > b ? a : b; }
ESPALIER_RULE float smaller(float a, float b) { return a < b ? a : b; }
#endif
ESPALIER_RULE float not_a_number() { return float_of(kNaNBits); }

// fp16 as bits; to nearest, ties to even.
#ifdef ESPALIER_GPU
ESPALIER_RULE float from_half(uint32_t bits) { return ESPALIER_GPU::from_fp16(bits); }
ESPALIER_RULE uint32_t to_half(float x) { return ESPALIER_GPU::to_fp16_bits(x); }
#else
ESPALIER_RULE float from_half(uint32_t bits) { return to_float(fp16{static_cast<uint16_t>(bits)}); }
ESPALIER_RULE uint32_t to_half(float x) { return to_fp16(x).bits; }
#endif
ESPALIER_RULE float number_of(fp16 x) { return from_half(x.bits); }
ESPALIER_RULE float number_of(bf16 x) { return float_of(uint32_t{x.bits} << 16); }

}  // namespace espalier::kernels
