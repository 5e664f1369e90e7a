#pragma once
// Numbers to codes, for a number at a time; see wire/values.cpp. A coder is what one code needs
// of a bucket, from what that carries; a code is in the lowest byte, above it are any bits. kBits:
// of every code, or 0: the message says how many. And those of fp8 back: fp8.cu has both.
#include "src/kernels/cuda/wire/carry.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Adding it rounds to an integer, to nearest even, which the low bits then hold.
inline constexpr float kRound = 12582912.0F;  // 1.5 * 2^23

/// Uniform in (-1/2, 1/2), 15 bits: its sum with a number below 256 keeps all of them, and rounding
/// an integer that it was added to gives that integer.
__device__ __forceinline__ float dither(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 17)) * 0x1p-15F + (0x1p-16F - 0.5F);
}
__device__ __forceinline__ float scaled(float x, Scaling to) { return x * to.before * to.after; }
__device__ __forceinline__ unsigned rounded(float t) { return __float_as_uint(t + kRound); }

struct LinearCoder {
  static constexpr bool kFp8 = false, kRange = false;
  static constexpr int kBits = 8;
  Scaling to;
  __device__ LinearCoder(const Message&, const Carried& carried)
      : to(scaling(carried.scale, 127)) {}
  template <bool kRandom>
  __device__ __forceinline__ unsigned code(float x, uint32_t word) const {
    float t = scaled(x, to);
    if constexpr (kRandom) {
      t = t > 127.0F ? 127.0F : t;
      t = t < -127.0F ? -127.0F : t;
      t += dither(word);
    }
    return rounded(t);
  }
};

struct MaxminCoder {
  static constexpr bool kFp8 = false, kRange = true;
  static constexpr int kBits = 0;
  Scaling to;
  float low, top;
  __device__ MaxminCoder(const Message& message, const Carried& carried) {
    to = scaling(carried.scale, 1);
    low = carried.least * to.before;
    top = static_cast<float>((1 << message.bits) - 1);
  }
  template <bool kRandom>
  __device__ __forceinline__ unsigned code(float x, uint32_t word) const {
    float t = (x * to.before - low) * to.after;
    t = fminf(t, top);
    if constexpr (kRandom) {
      t += dither(word);
    }
    return rounded(t);
  }
};

/// Normal numbers round by an integer sum over their bits, subnormal ones by a sum with a float
/// whose last bit is their unit.
template <int kExponentBits>
struct Fp8Coder {
  static constexpr bool kFp8 = true, kRange = false;
  static constexpr int kBits = 8;
  Scaling to;
  float top;
  __device__ Fp8Coder(Scaling scaling_to, float largest) : to(scaling_to), top(largest) {}
  __device__ Fp8Coder(const Message&, const Carried& carried) {
    constexpr int kExponent = kExponentBits == 5 ? kExponentE5M2 : kExponentE4M3;
    constexpr float kMost = 1.75F * static_cast<float>(1 << kExponent);
    const float scale = carried.scale;
    to = scaling(scale, 1);
    // The largest that may be used: the largest there is, unless that times the scale overflows.
    top = kMost <= kLargest / scale || scale == 0 ? kMost : 0.5F * kMost;
  }
  template <bool kRandom>
  __device__ __forceinline__ unsigned code(float x, uint32_t word) const {
    constexpr int kMantissaBits = 7 - kExponentBits;
    constexpr int kDropped = 23 - kMantissaBits;
    constexpr unsigned kBias = (1U << (kExponentBits - 1)) - 1;
    constexpr uint32_t kRebias = (127U - kBias) << kMantissaBits;
    constexpr float kLeastNormal = kExponentBits == 5 ? 0x1p-14F : 0x1p-6F;
    constexpr float kUnit = kLeastNormal / (1 << kMantissaBits);
    constexpr float kToUnits = kRound * kUnit;
    float v = fabsf(scaled(x, to));
    v = v > top ? top : v;
    const uint32_t bits = __float_as_uint(v);
    uint32_t up = 0;
    float small = v;
    if constexpr (kRandom) {
      up = word >> (32 - kDropped);
      small += dither(word) * kUnit;
    } else {
      up = (1U << (kDropped - 1)) - 1 + ((bits >> kDropped) & 1U);
    }
    const uint32_t normal = ((bits + up) >> kDropped) - kRebias;
    const uint32_t units = __float_as_uint(small + kToUnits);
    const uint32_t code = v < kLeastNormal ? units : normal;
    return (code & 0x7fU) | (__float_as_uint(x) >> 24 & 0x80U);
  }
  /// Four codes to nearest, as `code` makes them, where the device has instructions for that.
  __device__ __forceinline__ uint32_t four(const Quad& q) const {
    float v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      v[k] = fminf(fmaxf(scaled(q.x[k], to), -top), top);
    }
    return to_fp8_pair<kExponentBits>(v[0], v[1]) | to_fp8_pair<kExponentBits>(v[2], v[3]) << 16;
  }
};

template <int kExponentBits>
struct Fp8Decoder {
  float scale;
  __device__ explicit Fp8Decoder(float of_all) : scale(of_all) {}
  __device__ __forceinline__ float value(unsigned code) const {
    constexpr int kMantissaBits = 7 - kExponentBits;
    constexpr uint32_t kRebias = (127U - ((1U << (kExponentBits - 1)) - 1)) << 23;
    constexpr float kUnit = (kExponentBits == 5 ? 0x1p-14F : 0x1p-6F) / (1 << kMantissaBits);
    // Beyond the largest: E5M2 has an infinity and NaN, E4M3 one NaN.
    constexpr uint32_t kLast = kExponentBits == 5 ? 0x7bU : 0x7eU;
    const uint32_t magnitude = code & 0x7fU;
    const uint32_t moved = magnitude << (23 - kMantissaBits);
    const float small = static_cast<float>(static_cast<int>(magnitude)) * kUnit;
    uint32_t bits = magnitude < (1U << kMantissaBits) ? __float_as_uint(small) : moved + kRebias;
    // The E4M3 NaN has all bits of the mantissa set.
    bits = magnitude > kLast ? moved | kInfinite : bits;
    bits |= (code & 0x80U) << 24;
    return __uint_as_float(bits) * scale;
  }
  /// The same of four codes, where the device has instructions for that.
  __device__ __forceinline__ Quad four(uint32_t codes) const {
    Quad q = quad_of(DType::fp16, make_uint2(from_fp8_pair<kExponentBits>(codes & 0xffffU),
                                             from_fp8_pair<kExponentBits>(codes >> 16)));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      q.x[k] *= scale;
    }
    return q;
  }
};

/// Codes with a table. kOffset: ranks are counted from 127, of which there are only 127 below.
template <bool kOffset>
struct MagnitudeCoder {
  static constexpr bool kFp8 = false, kRange = false;
  static constexpr int kBits = 8;
  Scaling to;
  const MagnitudeTable* table;
  __device__ MagnitudeCoder(const Message& message, const Carried& carried)
      : to(scaling(carried.scale, 1)), table(message.table) {}

  __device__ __forceinline__ int nearest(float a) const {
    int cell = (__float_as_int(a) >> table->shift) - table->first;
    cell = cell < 0 ? 0 : cell;
    cell = cell < table->cells ? cell : table->cells - 1;
    return table->rank[cell] + (a > table->threshold[cell] ? 1 : 0);
  }
  /// The rank of one of the two magnitudes around a, the nearer more often.
  __device__ __forceinline__ int around(float a, uint32_t word) const {
    const int last = table->count - 1;
    const int near = nearest(a);
    const int below = near - (table->magnitude[near] > a ? 1 : 0);
    const int above = below < last ? below + 1 : last;
    const float low = table->magnitude[below];
    const float drawn = static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24F;
    return drawn * (table->magnitude[above] - low) < a - low ? above : below;
  }
  template <bool kRandom>
  __device__ __forceinline__ unsigned code(float x, uint32_t word) const {
    const float a = fabsf(scaled(x, to));
    const int rank = kRandom ? around(a, word) : nearest(a);
    const bool negative = __float_as_int(x) < 0;
    if constexpr (kOffset) {
      const int down = rank < 127 ? rank : 127;
      return static_cast<unsigned>(127 + (negative ? -down : rank));
    }
    return static_cast<unsigned>(rank) | (negative ? 0x80U : 0U);
  }
};

/// A search by halves among the bucket's own magnitudes.
struct TableCoder {
  static constexpr bool kFp8 = false, kRange = false;
  static constexpr int kBits = 0;
  const std::byte* wire;
  int steps;
  __device__ TableCoder(const Message& message, const Carried& carried)
      : wire(carried.wire), steps(message.bits - 1) {}
  template <bool kRandom>
  __device__ __forceinline__ unsigned code(float x, uint32_t) const {
    const float a = fabsf(x);
    int rank = 0;
    for (int step = steps - 1; step >= 0; --step) {
      const int half = 1 << step;
      const float low = get_float(wire + 4 * (rank + half - 1));
      const float high = get_float(wire + 4 * (rank + half));
      const float sum = low + high;
      const float middle = sum <= kLargest ? sum * 0.5F : low * 0.5F + high * 0.5F;
      rank += a > middle ? half : 0;
    }
    return static_cast<unsigned>(rank) + (__float_as_int(x) < 0 ? 1U << steps : 0U);
  }
};

struct SignCoder {
  static constexpr bool kFp8 = false, kRange = false;
  static constexpr int kBits = 1;
  __device__ SignCoder(const Message&, const Carried&) {}
  template <bool kRandom>
  __device__ __forceinline__ unsigned code(float x, uint32_t) const {
    return __float_as_uint(x) >> 31;
  }
};

}  // namespace espalier::kernels::ESPALIER_GPU
