#pragma once
// Scalar functions shared by wire codecs: bits of numbers, scaling, rounding, packed codes.
#include <cstddef>
#include <cstdint>

#include "src/core/types.h"
#include "src/kernels/rules/shared.h"
#include "src/kernels/wire_codec.h"

namespace espalier::kernels::wire {

/// Integers in the order of the floats, -0 before +0, NaN at the ends. Its own inverse.
ESPALIER_RULE int32_t ordered_bits(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

/// Statistics of a run of values. Statistics of several runs combine to the same result in any
/// order, except `sum`, which is added run by run.
struct Measured {
  int32_t largest = 0;  ///< bits of the largest magnitude; NaN counts as larger than infinity
  int32_t low = INT32_MAX, high = INT32_MIN;  ///< least and largest value, as ordered_bits
  double sum = 0;                             ///< of magnitudes
};

/// True if a value was not finite (not for Find::range).
ESPALIER_RULE bool is_bad(const Measured& found) {
  return static_cast<uint32_t>(found.largest) >= kInfiniteBits;
}
ESPALIER_RULE float largest_of(const Measured& found) {
  return float_of(static_cast<uint32_t>(found.largest));
}

struct WireTables;  // magnitude_table.h

/// The first words of a bucket's header.
struct Carried {
  uint32_t word[2];
  ESPALIER_RULE float scale() const { return float_of(word[0]); }
};
ESPALIER_RULE Carried carried_scale(float scale) { return {{bits_of(scale), 0}}; }

/// x / unit = (x before) after, where both factors are well within the range of floats.
struct Scaling {
  float before, after;
};
/// Scales to multiples of unit / parts.
ESPALIER_RULE Scaling scaling(float unit, float parts) {
  if (!(unit > 0)) {
    return {1, 0};
  }
  const float before = unit < 0x1p-64F ? 0x1p64F : unit > 0x1p64F ? 0x1p-64F : 1.0F;
  return {before, parts / (unit * before)};
}
ESPALIER_RULE float scaled(float x, Scaling to) { return x * to.before * to.after; }

/// Adding it rounds to an integer, to nearest even; the low bits then hold the integer.
inline constexpr float kRound = 12582912.0F;  // 1.5 * 2^23
ESPALIER_RULE uint32_t rounded(float t) { return bits_of(t + kRound); }

/// Uniform in (-1/2, 1/2), 15 bits. A sum with a number below 256 keeps all bits. Added to an
/// integer and rounded, it gives that integer.
ESPALIER_RULE float dither(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 17)) * 0x1p-15F + (0x1p-16F - 0.5F);
}

/// Packs eight codes of 1 to 8 bits, one in each byte, to adjacent bits, and back. Three steps
/// close (or open) the gaps between halves of the word's lanes.
ESPALIER_RULE uint64_t closed(uint64_t v, int bits) {
  v = (v & 0x00ff00ff00ff00ffU) | ((v & 0xff00ff00ff00ff00U) >> (8 - bits));
  v = (v & 0x0000ffff0000ffffU) | ((v & 0xffff0000ffff0000U) >> (16 - 2 * bits));
  return (v & 0x00000000ffffffffU) | ((v & 0xffffffff00000000U) >> (32 - 4 * bits));
}
ESPALIER_RULE uint64_t opened(uint64_t v, int bits) {
  const uint64_t four = (uint64_t{1} << (4 * bits)) - 1;
  const uint64_t two = ((uint64_t{1} << (2 * bits)) - 1) * 0x0000000100000001U;
  const uint64_t one = ((uint64_t{1} << bits) - 1) * 0x0001000100010001U;
  v = (v & four) | ((v & (four << (4 * bits))) << (32 - 4 * bits));
  v = (v & two) | ((v & (two << (2 * bits))) << (16 - 2 * bits));
  return (v & one) | ((v & (one << bits)) << (8 - bits));
}

}  // namespace espalier::kernels::wire
