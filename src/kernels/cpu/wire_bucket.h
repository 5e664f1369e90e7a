#pragma once
// One bucket of a message: what a pass over its values finds, what it carries for that, and what
// the loops over values need to know of it. Encoder and decoder read the carried bytes alone, so
// both work with the same, rounded numbers.
#include <cstddef>
#include <cstdint>

#include "src/kernels/wire_layout.h"
#include "src/kernels/wire_tables.h"

namespace espalier::kernels::ESPALIER_ISA {

/// Bits of the smallest number that is not finite.
inline constexpr uint32_t kInfinite = 0x7f800000U;
inline constexpr float kLargest = 0x1.fffffep127F;

/// Ordered as the floats are, -0 before +0, NaN at the ends.
[[gnu::always_inline]] inline int32_t ordered_bits(int32_t bits) {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

/// Of several runs of values: the same in whatever pieces they are met, but for `sum`, which adds
/// up piece by piece.
struct Measured {
  int32_t largest = 0;  ///< bits of the largest magnitude; NaN counts as larger than infinity
  int32_t low = INT32_MAX, high = INT32_MIN;  ///< least and largest value, as ordered_bits (maxmin)
  double sum = 0;                             ///< of magnitudes (sign)
};

/// Meets n values; only what `code` needs.
void measure(WireCode code, const float* x, int64_t n, Measured& found);
void join(Measured& found, const Measured& other);

/// Writes what a bucket with the values x [n] carries.
void carry(const WireFormat& format, const Measured& found, const float* x, int64_t n,
           std::byte* wire);

/// Numbers that differ by a power of two from what is asked lie well within the range of floats:
/// x / unit = (x before) after.
struct Scaling {
  float before = 1, after = 0;
};

/// How values of a bucket become codes.
struct BucketEncoder {
  bool bad;     ///< a value was not finite: codes are zero
  Scaling to;   ///< to units of a code
  float least;  ///< of maxmin: the least value, times to.before
  float top;    ///< of maxmin: the last level; of fp8: the largest number that may be used
  const MagnitudeTable* table;
  int magnitudes;     ///< of `table`: how many
  float middle[128];  ///< of `table`: between its magnitudes
};
void prepare(const WireFormat& format, const std::byte* wire, BucketEncoder& made);

/// How codes become values.
struct BucketDecoder {
  float scale;
  float least, unit;     ///< of maxmin
  bool huge;             ///< of maxmin: sums may overflow on the way
  const float* value;    ///< of codes, before they are scaled
  float own_value[256];  ///< where that depends on the bucket
};
void prepare(const WireFormat& format, const std::byte* wire, BucketDecoder& made);

/// IEEE half precision, to nearest even, and back.
[[gnu::always_inline]] inline uint16_t half_of(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  // Normal numbers: bias 127 becomes 15, 13 bits are rounded away.
  const uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  // Below 2^-14: a sum with 2^-1 leaves multiples of 2^-24 in the low bits.
  const float shifted = __builtin_bit_cast(float, magnitude) + 0.5F;
  const uint32_t small = __builtin_bit_cast(uint32_t, shifted) - 0x3f000000U;
  uint32_t half = magnitude < 0x38800000U ? small : normal;
  half = magnitude >= 0x477ff000U ? 0x7c00U : half;  // 65520 and beyond
  half = magnitude > kInfinite ? 0x7e00U : half;
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000U));
}

[[gnu::always_inline]] inline float float_of(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffU;
  const uint32_t normal = (magnitude << 13) + (112U << 23);
  const uint32_t small =
      __builtin_bit_cast(uint32_t, static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F);
  uint32_t bits = magnitude < 0x400U ? small : normal;
  bits = magnitude >= 0x7c00U ? (magnitude << 13) | kInfinite : bits;
  return __builtin_bit_cast(float, bits | (static_cast<uint32_t>(half) & 0x8000U) << 16);
}

}  // namespace espalier::kernels::ESPALIER_ISA
