#pragma once
// The language of CUDA kernels in plain C++, for tests: a source of src/kernels/cuda that includes
// <simt.h> is compiled with nvcc (where that is src/kernels/cuda/native/simt.h) or, with this file
// instead, for the host. See tests/simt/engine.h for how it runs.
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/simt/index.h"
#include "tests/simt/queue.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline void __syncthreads() { espalier::simt::barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  espalier::simt::warp_operation(espalier::simt::WarpOp::sync, mask, 0, 0, 32);
}

namespace espalier::simt {

template <class T>
T exchange(WarpOp op, unsigned mask, T value, unsigned argument, int width) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = warp_operation(op, mask, bits, argument, width);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace espalier::simt

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return espalier::simt::exchange(espalier::simt::WarpOp::shuffle, mask, value,
                                  static_cast<unsigned>(lane), width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return espalier::simt::exchange(espalier::simt::WarpOp::up, mask, value, delta, width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return espalier::simt::exchange(espalier::simt::WarpOp::down, mask, value, delta, width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return espalier::simt::exchange(espalier::simt::WarpOp::exchange, mask, value,
                                  static_cast<unsigned>(lanes), width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(espalier::simt::warp_operation(espalier::simt::WarpOp::ballot, mask,
                                                              predicate != 0 ? 1 : 0, 0, 32));
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask ? 1 : 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return static_cast<unsigned>(
      espalier::simt::warp_operation(espalier::simt::WarpOp::match, mask, bits, 0, 32));
}

// One thread runs at a time: atomics are plain.
#define ESPALIER_ATOMIC(name, after) \
  template <class T>                 \
  T name(T* at, T value) {           \
    const T before = *at;            \
    *at = after;                     \
    return before;                   \
  }
ESPALIER_ATOMIC(atomicAdd, before + value)
ESPALIER_ATOMIC(atomicMax, before < value ? value : before)
ESPALIER_ATOMIC(atomicMin, value < before ? value : before)
ESPALIER_ATOMIC(atomicExch, value)
ESPALIER_ATOMIC(atomicOr, before | value)
#undef ESPALIER_ATOMIC
template <class T>
T atomicCAS(T* at, T compare, T value) {
  const T before = *at;
  *at = before == compare ? value : before;
  return before;
}
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned>(x)); }
inline int __ffsll(long long x) {
  return x == 0 ? 0 : 1 + std::countr_zero(static_cast<unsigned long long>(x));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((uint64_t{a} * b) >> 32);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = low | uint64_t{high} << 32;
  unsigned made = 0;
  for (unsigned k = 0; k < 4; ++k) {
    made |= (static_cast<unsigned>(bytes >> 8 * (selector >> 4 * k & 7U)) & 255U) << 8 * k;
  }
  return made;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __fdividef(float a, float b) { return a / b; }

namespace espalier::simt {

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic_shared_memory());
}

}  // namespace espalier::simt

namespace espalier::kernels::ESPALIER_GPU {

using DeviceQueue = espalier::simt::Queue;
using espalier::simt::dynamic_shared;

inline void store_vector(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }
inline float quick_root(float x) { return std::sqrt(x); }
inline float quick_inverse_root(float x) { return 1.0F / std::sqrt(x); }
inline float quick_quotient(float a, float b) { return a / b; }
inline float power_of_2(float x) {
  const float power = std::exp2(x);
  return power < 0x1p-126F ? 0.0F : power;
}
inline float from_fp16(uint32_t bits) { return to_float(fp16{static_cast<uint16_t>(bits)}); }
inline uint32_t to_bf16_pair(float low, float high) {
  const auto bits = [](float x) { return x != x ? 0x7fc0U : uint32_t{to_bf16(x).bits}; };
  return bits(low) | bits(high) << 16;
}
inline uint32_t to_fp16_bits(float x) { return to_fp16(x).bits; }

inline constexpr bool kConvertsFp8 = true;
/// Value of a code without its sign.
template <int kExponentBits>
float fp8_magnitude(unsigned code) {
  constexpr int kBits = 7 - kExponentBits;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  const auto exponent = static_cast<int>(code >> kBits);
  const auto mantissa = static_cast<int>(code & ((1U << kBits) - 1));
  if (kExponentBits == 5 ? exponent == 31 : code == 127) {
    return kExponentBits == 5 && mantissa == 0 ? HUGE_VALF : NAN;
  }
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << kBits);
  return std::ldexp(static_cast<float>(whole), (exponent == 0 ? 1 : exponent) - kBias - kBits);
}
template <int kExponentBits>
uint32_t to_fp8(float x) {
  const unsigned last = kExponentBits == 5 ? 0x7b : 0x7e;
  const float a = std::fabs(x);
  unsigned code = 0;
  while (code < last && fp8_magnitude<kExponentBits>(code + 1) <= a) {
    ++code;
  }
  if (code < last) {
    const float below = a - fp8_magnitude<kExponentBits>(code);
    const float above = fp8_magnitude<kExponentBits>(code + 1) - a;
    code += below > above || (below == above && code % 2 == 1) ? 1 : 0;
  }
  return code | (std::signbit(x) ? 0x80U : 0U);
}
template <int kExponentBits>
uint32_t to_fp8_pair(float low, float high) {
  return to_fp8<kExponentBits>(low) | to_fp8<kExponentBits>(high) << 8;
}
template <int kExponentBits>
uint32_t from_fp8_pair(uint32_t codes) {
  const auto half = [](uint32_t code) {
    const float magnitude = fp8_magnitude<kExponentBits>(code & 0x7fU);
    return to_fp16_bits((code & 0x80U) != 0 ? -magnitude : magnitude);
  };
  return half(codes) | half(codes >> 8) << 16;
}

}  // namespace espalier::kernels::ESPALIER_GPU
