#pragma once
// 8-bit codes of the dynamic map (../dynamic_lines.h): the same rule as cpu/dynamic_code.h, a quad
// of codes at a time. The 256 numbers of a block lie in a warp, two quads a lane.
#include "src/kernels/cuda/reduce.h"
#include "src/kernels/dynamic_lines.h"

namespace espalier::kernels::ESPALIER_GPU {

template <DynamicMap kMap>
struct DynamicCode {
  using Lines = DynamicLines<kMap>;

  template <int kDecade>
  static __device__ __forceinline__ float higher(float middle, float best) {
    constexpr DynamicLine kLine = Lines::line(kDecade);
    return fmaxf(middle * kLine.slope + kLine.start, best);
  }
  template <int kDecade>
  static __device__ __forceinline__ float lower(float x, float best) {
    constexpr DynamicLine kLine = Lines::line(kDecade);
    return fminf(x * kLine.steepness + kLine.offset, best);
  }

  static __device__ __forceinline__ float value(float p) {
    const float middle = p + 0.5F;
    float best = higher<0>(middle, 0.0F);
    best = higher<1>(middle, best);
    best = higher<2>(middle, best);
    best = higher<3>(middle, best);
    best = higher<4>(middle, best);
    best = higher<5>(middle, best);
    best = higher<6>(middle, best);
    return fminf(best, 1.0F);
  }

  /// The nearest p to x in [0, 1), but for that of the value 1.
  static __device__ __forceinline__ float nearest(float x) {
    float position = lower<0>(x, 1024.0F);
    position = lower<1>(x, position);
    position = lower<2>(x, position);
    position = lower<3>(x, position);
    position = lower<4>(x, position);
    position = lower<5>(x, position);
    position = lower<6>(x, position);
    const auto p = static_cast<float>(static_cast<int>(position));
    const bool power_of_2 = (__float_as_uint(p) & 0x7fffffU) == 0;
    const bool before = position - p < Lines::kBorder;
    return power_of_2 && before ? p - 1.0F : p;
  }

  static __device__ __forceinline__ float decoded(unsigned code) {
    if constexpr (Lines::kSigned) {
      const auto p = static_cast<float>(static_cast<int>(code) - 127);
      return copysignf(value(fabsf(p)), p);
    }
    return value(static_cast<float>(code + 1));
  }

  /// x is relative to the scale; of NaN some code.
  static __device__ __forceinline__ unsigned encoded(float x) {
    const float magnitude = fabsf(x);
    const float p = nearest(magnitude < Lines::kBelowOne ? magnitude : Lines::kBelowOne);
    float code = Lines::kSigned ? 127.0F + copysignf(p, x) : p - 1.0F;
    if constexpr (!Lines::kSigned) {
      code = fmaxf(code, magnitude > 0 ? 1.0F : 0.0F);
    }
    code = x >= Lines::kNearOne ? 255.0F : code;  // there is no -1
    return static_cast<unsigned>(static_cast<int>(code)) & 255U;
  }
};

struct CodeScale {
  float scale, inverse;
};

/// Of the warp's numbers, of which each lane has two quads.
__device__ __forceinline__ CodeScale warp_scale(const Quad& a, const Quad& b) {
  constexpr float kMost = 0x1.fffffep127F;
  float high = 0;
  float low = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    high = fmaxf(high, fmaxf(a.x[k], b.x[k]));
    low = fminf(low, fminf(a.x[k], b.x[k]));
  }
  high = fminf(warp_max(high), kMost);
  low = fmaxf(-warp_max(-low), -kMost);
  const float scale = high >= -low ? high : low;
  const bool zero = fabsf(scale) < 0x1p-104F;
  return {zero ? 0.0F : scale, zero ? 0.0F : 1.0F / scale};
}

/// Four codes in one word, the first in its lowest byte. kWhole as in elements.h.
template <bool kWhole = false>
__device__ __forceinline__ unsigned load_codes(const uint8_t* codes, int64_t i, int64_t count) {
  if constexpr (!kWhole) {
    if (count < 4 || !aligned(codes + i, 4)) {
      unsigned word = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        word |= k < count ? unsigned{codes[i + k]} << 8 * k : 0U;
      }
      return word;
    }
  }
  return *reinterpret_cast<const unsigned*>(codes + i);
}
template <bool kWhole = false>
__device__ __forceinline__ void store_codes(uint8_t* codes, int64_t i, int64_t count,
                                            unsigned word) {
  if constexpr (!kWhole) {
    if (count < 4 || !aligned(codes + i, 4)) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < count) {
          codes[i + k] = static_cast<uint8_t>(word >> 8 * k);
        }
      }
      return;
    }
  }
  *reinterpret_cast<unsigned*>(codes + i) = word;
}

template <DynamicMap kMap>
__device__ __forceinline__ Quad decode_quad(unsigned codes, float scale) {
  Quad q;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    q.x[k] = DynamicCode<kMap>::decoded(codes >> 8 * k & 255U) * scale;
  }
  return q;
}
template <DynamicMap kMap>
__device__ __forceinline__ unsigned encode_quad(const Quad& q, float inverse) {
  unsigned codes = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    codes |= DynamicCode<kMap>::encoded(q.x[k] * inverse) << 8 * k;
  }
  return codes;
}

}  // namespace espalier::kernels::ESPALIER_GPU
