#pragma once
// Element access of kernels. The type of a pointer (fp32, bf16 or fp16) is a run-time value. It
// costs a uniform branch beside a memory access, and each kernel is compiled once for all types.
//
// Work is divided into quads: four neighbouring elements, loaded as 16 bytes (16-bit types: 8),
// side by side over the lanes. A quad that is unaligned or at the end is accessed element by
// element. That check takes about forty instructions, more than an SM can issue while memory
// delivers the quad. So kernels:
// - check all their quads at once where possible, and pass kWhole;
// - issue all loads (load_raw) before they use any result (quad_of), to keep enough bytes in
//   flight.
//
// bf16 and fp16 are rounded to nearest, ties to even. A NaN becomes 0x7fc0 in bf16, and the quiet
// NaN of its sign in fp16.
#include <cstdint>

#include "src/kernels/cuda/device/launch.h"

namespace espalier::kernels::ESPALIER_GPU {

/// fp32, bf16 or fp16 elements in device memory.
struct Elements {
  void* data = nullptr;
  DType type = DType::fp32;
  __host__ __device__ bool half() const { return type != DType::fp32; }
  __host__ __device__ int bytes_each() const { return half() ? 2 : 4; }
};

inline Elements elements(const Tensor& t) { return {t.data, t.dtype}; }

/// The elements from number `first` on.
__device__ __forceinline__ Elements elements_from(const Elements& e, int64_t first) {
  return {static_cast<std::byte*>(e.data) + first * e.bytes_each(), e.type};
}

struct Quad {
  float x[4];
};

__device__ __forceinline__ void add(Quad& sum, const Quad& q) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sum.x[k] += q.x[k];
  }
}

__device__ __forceinline__ int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
__device__ __forceinline__ int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/// a / b of non-negative numbers. It uses 32 bits if both fit, which takes a third of the time.
__host__ __device__ __forceinline__ int64_t quotient(int64_t a, int64_t b) {
  if ((static_cast<uint64_t>(a | b) >> 32) == 0) {
    return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  }
  return a / b;
}

__device__ __forceinline__ float from_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ uint32_t to_bf16_bits(float x) { return to_bf16_pair(x, 0.0F); }

template <class T>
__device__ __forceinline__ bool aligned(const T* at, unsigned bytes) {
  return (reinterpret_cast<uintptr_t>(at) & (bytes - 1)) == 0;
}

/// Conversions of the 16-bit types.
__device__ __forceinline__ float from_half(DType type, uint32_t bits) {
  return type == DType::fp16 ? from_fp16(bits) : from_bf16(bits);
}
__device__ __forceinline__ uint32_t to_half_bits(DType type, float x) {
  return type == DType::fp16 ? to_fp16_bits(x) : to_bf16_bits(x);
}

__device__ __forceinline__ float load(const Elements& e, int64_t i) {
  return e.half() ? from_half(e.type, static_cast<const uint16_t*>(e.data)[i])
                  : static_cast<const float*>(e.data)[i];
}
__device__ __forceinline__ void store(const Elements& e, int64_t i, float x) {
  if (e.half()) {
    static_cast<uint16_t*>(e.data)[i] = static_cast<uint16_t>(to_half_bits(e.type, x));
  } else {
    static_cast<float*>(e.data)[i] = x;
  }
}

/// True if all quads of the array are aligned, also in rows that are `stride` elements apart.
inline bool has_whole_quads(const Elements& e, int64_t stride = 0) {
  return reinterpret_cast<uintptr_t>(e.data) % (4 * static_cast<unsigned>(e.bytes_each())) == 0 &&
         stride % 4 == 0;
}
template <class T>
bool has_whole_quads(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % (4 * sizeof(T)) == 0;
}

// Access to elements i … i + count - 1, count <= 4; the rest reads as zero. kWhole: the quad is
// aligned and complete.

template <bool kWhole = false>
__device__ __forceinline__ Quad load_quad(const float* p, int64_t i, int64_t count) {
  if constexpr (!kWhole) {
    if (count < 4 || !aligned(p + i, 16)) {
      Quad q{};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        q.x[k] = k < count ? p[i + k] : 0.0F;
      }
      return q;
    }
  }
  const float4 v = *reinterpret_cast<const float4*>(p + i);
  return {{v.x, v.y, v.z, v.w}};
}
template <bool kWhole = false>
__device__ __forceinline__ void store_quad(float* p, int64_t i, int64_t count, const Quad& q) {
  if constexpr (!kWhole) {
    if (count < 4 || !aligned(p + i, 16)) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < count) {
          p[i + k] = q.x[k];
        }
      }
      return;
    }
  }
  store_vector(p + i, make_float4(q.x[0], q.x[1], q.x[2], q.x[3]));
}

/// Four 16-bit elements, the first in the lower half of x.
template <bool kWhole = false>
__device__ __forceinline__ uint2 load_halves(const uint16_t* p, int64_t count) {
  if constexpr (!kWhole) {
    if (count < 4 || !aligned(p, 8)) {
      uint32_t bits[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        bits[k] = k < count ? p[k] : 0U;
      }
      return make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
    }
  }
  return *reinterpret_cast<const uint2*>(p);
}
template <bool kWhole = false>
__device__ __forceinline__ void store_halves(uint16_t* p, int64_t count, uint2 halves) {
  if constexpr (!kWhole) {
    if (count < 4 || !aligned(p, 8)) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < count) {
          p[k] = static_cast<uint16_t>((k < 2 ? halves.x : halves.y) >> 16 * (k % 2));
        }
      }
      return;
    }
  }
  // One 8-byte store, for the same reason as store_vector.
  *reinterpret_cast<uint64_t*>(p) = uint64_t{halves.y} << 32 | halves.x;
}

__device__ __forceinline__ Quad quad_of(DType type, uint2 v) {
  if (type == DType::fp16) {
    return {{from_fp16(v.x & 0xffffU), from_fp16(v.x >> 16), from_fp16(v.y & 0xffffU),
             from_fp16(v.y >> 16)}};
  }
  return {{from_bf16(v.x & 0xffffU), from_bf16(v.x >> 16), from_bf16(v.y & 0xffffU),
           from_bf16(v.y >> 16)}};
}
__device__ __forceinline__ uint2 halves_of(DType type, const Quad& q) {
  if (type == DType::fp16) {
    return make_uint2(to_fp16_bits(q.x[0]) | to_fp16_bits(q.x[1]) << 16,
                      to_fp16_bits(q.x[2]) | to_fp16_bits(q.x[3]) << 16);
  }
  return make_uint2(to_bf16_pair(q.x[0], q.x[1]), to_bf16_pair(q.x[2], q.x[3]));
}

/// A quad in its stored form: the bits of fp32, or 16-bit elements, two in each of the first two
/// words.
struct RawQuad {
  float word[4];
};

template <bool kWhole = false>
__device__ __forceinline__ RawQuad load_raw(const Elements& e, int64_t i, int64_t count) {
  RawQuad raw{};
  if (e.half()) {
    const uint2 v = load_halves<kWhole>(static_cast<const uint16_t*>(e.data) + i, count);
    raw.word[0] = __uint_as_float(v.x);
    raw.word[1] = __uint_as_float(v.y);
  } else {
    const Quad q = load_quad<kWhole>(static_cast<const float*>(e.data), i, count);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      raw.word[k] = q.x[k];
    }
  }
  return raw;
}
__device__ __forceinline__ Quad quad_of(DType type, const RawQuad& raw) {
  if (type == DType::fp32) {
    return {{raw.word[0], raw.word[1], raw.word[2], raw.word[3]}};
  }
  return quad_of(type, make_uint2(__float_as_uint(raw.word[0]), __float_as_uint(raw.word[1])));
}

template <bool kWhole = false>
__device__ __forceinline__ Quad load_quad(const Elements& e, int64_t i, int64_t count) {
  return quad_of(e.type, load_raw<kWhole>(e, i, count));
}
template <bool kWhole = false>
__device__ __forceinline__ void store_quad(const Elements& e, int64_t i, int64_t count,
                                           const Quad& q) {
  if (!e.half()) {
    store_quad<kWhole>(static_cast<float*>(e.data), i, count, q);
  } else {
    store_halves<kWhole>(static_cast<uint16_t*>(e.data) + i, count, halves_of(e.type, q));
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
