#pragma once
// 8-bit codes of the dynamic map (rules/dynamic_lines.h), a quad at a time; the same rule as
// cpu/optimizer/dynamic_code.h. A warp holds the 256 numbers of a block, two quads per lane.
#include <utility>

#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/rules/dynamic_lines.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Scale of the warp's 256 numbers; each lane passes two quads.
__device__ __forceinline__ BlockScale warp_scale(const Quad& a, const Quad& b) {
  float high = 0;
  float low = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    high = fmaxf(high, fmaxf(a.x[k], b.x[k]));
    low = fminf(low, fminf(a.x[k], b.x[k]));
  }
  return block_scale(warp_max(high), -warp_max(-low));
}

/// Loads or stores four codes as one word, the first in its lowest byte. kWhole as in elements.h.
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
    q.x[k] = DynamicLines<kMap>::value(codes >> 8 * k & 255U) * scale;
  }
  return q;
}

/// Shared-memory tables for both directions of a map, for kernels with many numbers. Decoding reads
/// a value by its code. Encoding reads, for an octave of magnitudes [2^e, 2^(e+1)), the two lines
/// that can meet it: there are only two, since a decade spans more than three octaves.
template <DynamicMap kMap>
class CodeTable {
  using Lines = DynamicLines<kMap>;

 public:
  /// Called by all threads of a block, at least 32. A barrier must follow before the first lookup.
  __device__ __forceinline__ void fill() {
    for (unsigned code = threadIdx.x; code < 256; code += blockDim.x) {
      values_[code] = Lines::value(static_cast<int>(code));
    }
    if (threadIdx.x < kOctaves) {
      fill_octave(threadIdx.x);
    }
  }

  __device__ __forceinline__ Quad decode(unsigned codes, float scale) const {
    Quad q;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      q.x[k] = values_[codes >> 8 * k & 255U] * scale;
    }
    return q;
  }

  __device__ __forceinline__ unsigned encode(const Quad& q, float inverse) const {
    unsigned codes = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      codes |= encoded(q.x[k] * inverse) << 8 * k;
    }
    return codes;
  }

 private:
  static constexpr int kOctaves = 32;
  static constexpr int kFirst = 127 - kOctaves;  ///< exponent of octave 0; smaller ones clamp to it

  /// Lines of a decade whose border lies in the octave or below, and of the decade before it.
  struct Octave {
    float steepness_before, offset_before, steepness, offset;
  };
  struct Border {
    float position;  ///< codes from here on belong to the decade
    float before;    ///< largest position below the border, rounded down
  };

  /// Fills the octave if it ends in this decade or a later one; the last call that applies wins.
  template <int kDecade>
  __device__ __forceinline__ void fill_from(unsigned octave, float end) {
    constexpr DynamicLine kLine = Lines::line(kDecade);
    constexpr DynamicLine kBefore = Lines::line(kDecade > 0 ? kDecade - 1 : 0);
    constexpr auto kFirstOfDecade = static_cast<float>(1 << (kDecade + Lines::kLevel));
    if (kDecade > 0 && end * kLine.steepness + kLine.offset < kFirstOfDecade) {
      return;
    }
    octaves_[octave] = {kBefore.steepness, kBefore.offset, kLine.steepness, kLine.offset};
    // The least number for which `position - kFirstOfDecade < kBorder` is false.
    float border = kFirstOfDecade + Lines::kBorder;
    border = border - kFirstOfDecade < Lines::kBorder ? __uint_as_float(__float_as_uint(border) + 1)
                                                      : border;
    borders_[octave] = {border, kFirstOfDecade - 0.5F};
  }
  __device__ __forceinline__ void fill_octave(unsigned octave) {
    const float end = __uint_as_float((kFirst + octave + 1) << 23);
    for_decades([&]<int kDecade>() { fill_from<kDecade>(octave, end); });
  }

  /// x is relative to the scale. NaN gives an unspecified code.
  __device__ __forceinline__ unsigned encoded(float x) const {
    const float magnitude = fminf(fabsf(x), Lines::kBelowOne);
    const int exponent = static_cast<int>(__float_as_uint(magnitude) >> 23);
    const int octave = (exponent > kFirst ? exponent : kFirst) - kFirst;
    const Octave lines = octaves_[octave];
    const Border border = borders_[octave];
    const float before = magnitude * lines.steepness_before + lines.offset_before;
    const float position = magnitude * lines.steepness + lines.offset;
    const auto p =
        static_cast<int>(position >= border.position ? position : fminf(before, border.before));
    if constexpr (Lines::kSigned) {
      const int code = x < 0.0F ? 127 - p : 127 + p;
      return x >= Lines::kNearOne ? 255U : static_cast<unsigned>(code) & 255U;
    } else {
      const int least = magnitude > 0.0F ? 1 : 0;
      const int code = p - 1 > least ? p - 1 : least;
      return x >= Lines::kNearOne ? 255U : static_cast<unsigned>(code) & 255U;
    }
  }

  float values_[256];
  alignas(16) Octave octaves_[kOctaves];
  alignas(8) Border borders_[kOctaves];
};

}  // namespace espalier::kernels::ESPALIER_GPU
