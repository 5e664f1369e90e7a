#pragma once
// One bucket of a message on the device: the rules of cpu/wire/bucket.h, number by number. What it
// carries is worked out by one thread from what a pass over its values has found; encoder and
// decoder read the carried bytes alone. No product may be fused with a sum here (see CMake).
#include "src/kernels/cuda/simt/elements.h"
#include "src/kernels/rules/wire_layout.h"
#include "src/kernels/rules/wire_tables.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Bits of the smallest number that is not finite.
inline constexpr uint32_t kInfinite = 0x7f800000U;
inline constexpr float kLargest = 0x1.fffffep127F;
inline constexpr uint32_t kNaNBits = 0x7fc00000U;

/// The tables of wire_tables.h in one piece, as the device has them.
struct WireTables {
  static constexpr int kPowers = 76;
  MagnitudeTable dynamic8, dynamic8_bnb, static8, mantissa8;
  float powers_of_ten[kPowers];

  __host__ __device__ const MagnitudeTable& of(WireCode code) const {
    return code == WireCode::dynamic8       ? dynamic8
           : code == WireCode::dynamic8_bnb ? dynamic8_bnb
           : code == WireCode::static8      ? static8
                                            : mantissa8;
  }
};
/// The device's copy.
const WireTables* wire_tables(Stream& stream);

/// A message as kernels see it.
struct Message {
  std::byte* wire;
  float* x;  ///< values
  int64_t n, bucket, buckets, carried, codes;
  WireCode code;
  int bits;
  int64_t kept;
  bool half_meta;
  const WireTables* tables;
  const MagnitudeTable* table;  ///< of the code, among these
  /// Values are aligned to 16 bytes, what buckets carry and codes to 4; a bucket has 2^shift >= 4
  /// values, or there is one bucket (shift 63).
  bool whole;
  int shift;

  __device__ std::byte* carried_by(int64_t number) const { return wire + number * carried; }
};
Message message_of(Stream& stream, const WireFormat& format, const void* wire, const Tensor& x);

/// What a pass over values finds.
struct Measured {
  int32_t largest = 0;  ///< bits of the largest magnitude; NaN counts as larger than infinity
  int32_t low = INT32_MAX, high = INT32_MIN;  ///< least and largest value, as ordered_bits (maxmin)
  double sum = 0;                             ///< of magnitudes (sign)
};

/// Ordered as the floats are, -0 before +0, NaN at the ends.
__device__ __forceinline__ int32_t ordered_bits(int32_t bits) {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

__device__ __forceinline__ float not_a_number() { return __uint_as_float(kNaNBits); }

/// Numbers at any address.
__device__ __forceinline__ uint16_t get_half(const std::byte* p) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(p);
  return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}
template <bool kAligned = false>
__device__ __forceinline__ float get_float(const std::byte* p) {
  if (kAligned || aligned(p, 4)) {
    return *reinterpret_cast<const float*>(p);
  }
  return __uint_as_float(unsigned{get_half(p)} | unsigned{get_half(p + 2)} << 16);
}
__device__ __forceinline__ void put_half(std::byte* p, unsigned half) {
  p[0] = static_cast<std::byte>(half);
  p[1] = static_cast<std::byte>(half >> 8);
}
__device__ __forceinline__ void put_float(std::byte* p, float x) {
  if (aligned(p, 4)) {
    *reinterpret_cast<float*>(p) = x;
    return;
  }
  const unsigned bits = __float_as_uint(x);
  put_half(p, bits & 0xffffU);
  put_half(p + 2, bits >> 16);
}

/// Numbers that differ by a power of two from what is asked lie well within the range of floats:
/// x / unit = (x before) after.
struct Scaling {
  float before = 1, after = 0;
};
__device__ __forceinline__ Scaling scaling(float unit, float parts) {
  if (!(unit > 0)) {
    return {1, 0};
  }
  const float before = unit < 0x1p-64F ? 0x1p64F : unit > 0x1p64F ? 0x1p-64F : 1.0F;
  return {before, parts / (unit * before)};
}

/// What one bucket carries. kRange: of maxmin.
struct Carried {
  const std::byte* wire;
  float scale;  ///< the first number; NaN: a value was not finite; of maxmin the unit
  float least;  ///< of maxmin
};
template <bool kRange, bool kAligned = false>
__device__ __forceinline__ Carried read_carried(const Message& message, int64_t number) {
  const std::byte* wire = message.carried_by(number);
  if constexpr (!kRange) {
    return {wire, get_float<kAligned>(wire), 0.0F};
  }
  if (message.half_meta) {
    return {wire, from_fp16(get_half(wire)), from_fp16(get_half(wire + 2))};
  }
  return {wire, get_float<kAligned>(wire), get_float<kAligned>(wire + 4)};
}

}  // namespace espalier::kernels::ESPALIER_GPU
