#pragma once
// One bucket of a message: what a pass over its values finds, what it carries for that, and what
// the loops over values need to know of it. Encoder and decoder read the carried bytes alone, so
// both work with the same, rounded numbers.
#include <cstddef>
#include <cstdint>

#include "src/core/types.h"
#include "src/kernels/rules/wire_layout.h"
#include "src/kernels/rules/wire_tables.h"

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

}  // namespace espalier::kernels::ESPALIER_ISA
