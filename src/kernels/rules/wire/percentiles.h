#pragma once
// table: magnitudes by the percentiles of their distribution (AdaPrec).
//
//   header    M = 2^(bits-1) magnitudes: the percentiles 99 k / M, k = 1 … M, of at most 2,048
//             evenly spaced magnitudes of the bucket
//   code      rank of the nearest magnitude; the sign in the highest bit
//
// Source: Oyama, "AdaPrec", 2017. Each backend has its own sort.
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::wire {

struct Percentiles {
  static constexpr int64_t usual_bucket(int) { return 0; }  // one table for a message
  static constexpr int64_t carried_bytes(const WireFormat& format) {
    return 4 * (int64_t{1} << (format.bits - 1));
  }
  static constexpr WireCodec kEntry{.name = "table",
                                    .help =
                                        "2^(BITS-1) percentiles of the bucket's magnitudes, "
                                        "and signs",
                                    .numbers = WireNumbers::bits,
                                    .bits = 0,
                                    .usual_bucket = usual_bucket,
                                    .carried_bytes = carried_bytes};
  static constexpr Find kFind = Find::largest;
  static constexpr int64_t kMaxNumbers = 2048;  ///< at most this many are sorted

  /// Every stride-th value of a bucket of n is sorted.
  ESPALIER_RULE static int64_t stride_of(int64_t n) { return (n + kMaxNumbers - 1) / kMaxNumbers; }
  /// Position of percentile k (1 … count) among `taken` sorted numbers.
  ESPALIER_RULE static int64_t place_of(int64_t k, int64_t taken, int64_t count) {
    return (2 * 99 * k * (taken - 1) + 100 * count) / (200 * count);
  }
  /// The middle between two magnitudes.
  ESPALIER_RULE static float middle_of(float low, float high) {
    const float sum = low + high;
    return sum <= kLargest ? sum * 0.5F : low * 0.5F + high * 0.5F;
  }
  /// Binary search among 2^steps magnitudes; middle(k): between magnitudes k and k + 1.
  template <class Middle>
  ESPALIER_RULE static uint32_t code(float x, int steps, const Middle& middle) {
    const float a = magnitude_of(x);
    int32_t rank = 0;
    ESPALIER_UNROLL
    for (int step = steps - 1; step >= 0; --step) {
      const int32_t half = 1 << step;
      rank += a > middle(rank + half - 1) ? half : 0;
    }
    return static_cast<uint32_t>(rank) + (static_cast<int32_t>(bits_of(x)) < 0 ? 1U << steps : 0U);
  }
  /// `magnitude(k)` returns the k-th magnitude.
  template <class Magnitude>
  ESPALIER_RULE static float value(uint32_t code, int bits, const Magnitude& magnitude) {
    const uint32_t sign = 1U << (bits - 1);
    const float found = magnitude(code & (sign - 1));
    return (code & sign) != 0 ? -found : found;
  }
};

}  // namespace espalier::kernels::wire
