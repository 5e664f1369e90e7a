#pragma once
// eden: a random rotation, then the 2^bits best values for a normal distribution; unbiased.
//
//   bucket   scale S, seed, then p codes of `bits` bits; p = the number n of values, padded with
//            zeros to a power of two
//   encode   r = H D x           D: random signs, H: Walsh-Hadamard, entries ±1
//            q_i = the centroid nearest to r_i √p / |r|      (Lloyd-Max of N(0, 1), bits 1 … 4)
//            S = |r|² / (√p <r, q>)
//   decode   y = S / √p D H q
//
// H D / √p is a rotation. Rotated coordinates are nearly normal unless a few values dominate the
// bucket. S makes the mean of y over rotations equal x: exactly over all rotations, and nearly over
// those by random signs if coordinates are normal. Expected |y - x|² / |x|²: 0.571 (π/2 - 1),
// 0.133, 0.0358, 0.0096 for 1 … 4 bits. Signs are bits of Philox(seed). The seed is a function of
// the key and of the number of the bucket's first element: the same key (0: rounding to nearest)
// gives the same rotations.
//
// Equal bits everywhere: butterflies go from stride 1 up, each a + b and a - b. A sum over i is 256
// sums in double, by i mod 256, joined by halves. x is first scaled by a power of two, so that no
// sum overflows. A decoded value beyond the largest float is clamped to it.
// Source: Vargaftik and others, "EDEN", ICML 2022; "DRIVE", NeurIPS 2021.
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::wire {

struct Eden {
  static constexpr int64_t kHeader = 8;  ///< bytes: scale, seed
  static constexpr int64_t kMaxBucket = 8192;
  static constexpr int kSums = 256;

  static constexpr int64_t padded(int64_t n) {
    int64_t p = 1;
    while (p < n) {
      p *= 2;
    }
    return p;
  }
  static constexpr int64_t usual_bucket(int) { return 4096; }
  static constexpr int64_t bucket_bytes(const WireFormat& format, int64_t n) {
    return n == 0 ? 0 : kHeader + (padded(n) * format.bits + 7) / 8;
  }
  static constexpr WireCodec kEntry{.name = "eden",
                                    .help = "a random rotation, then BITS bits; unbiased",
                                    .numbers = WireNumbers::bits,
                                    .form = WireForm::whole,
                                    .bits = 0,
                                    .most_bits = 4,
                                    .random = true,
                                    .most_bucket = kMaxBucket,
                                    .usual_bucket = usual_bucket,
                                    .bucket_bytes = bucket_bytes};
  static constexpr Find kFind = Find::largest;

  ESPALIER_RULE static uint32_t seed_of(uint64_t key, int64_t first) {
    uint64_t z = key + 0x9E3779B97F4A7C15U * (static_cast<uint64_t>(first) + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return static_cast<uint32_t>(z ^ (z >> 31));
  }
  /// The sign of element i of a bucket is bit i % 32 of word (i / 32) % 4 of Philox(seed), counter
  /// i / 128.
  ESPALIER_RULE static float with_sign(float x, uint32_t word, int bit) {
    return float_of(bits_of(x) ^ (word >> bit) << 31);
  }

  /// Scales by a power of two to magnitudes of about 1.
  ESPALIER_RULE static Scaling scaling_of(float largest) {
    const float before = largest < 0x1p-64F ? 0x1p64F : largest > 0x1p64F ? 0x1p-64F : 1.0F;
    const uint32_t exponent = bits_of(largest * before) >> 23;
    return {before, float_of((254U - exponent) << 23)};
  }
  /// The centroid of rank `rank` among the magnitudes of a code of `bits` bits.
  ESPALIER_RULE static float centroid(int bits, int rank) {
    constexpr float kAll[16] = {0.0F,         0.797884561F, 0.452780035F, 1.51041761F,
                                0.245094179F, 0.756005281F, 1.34390928F,  2.1519457F,
                                0.12839503F,  0.388048299F, 0.656759119F, 0.942340456F,
                                1.2562312F,   1.61804639F,  2.06901673F,  2.73258957F};
    return kAll[(1 << (bits - 1)) + rank];
  }
  ESPALIER_RULE static float middle(int bits, int rank) {
    return 0.5F * (centroid(bits, rank) + centroid(bits, rank + 1));
  }
  /// The highest bit is the sign.
  ESPALIER_RULE static float value(uint32_t code, int bits) {
    const uint32_t sign = 1U << (bits - 1);
    const float found = centroid(bits, static_cast<int>(code & (sign - 1)));
    return (code & sign) != 0 ? -found : found;
  }
  /// Code of z = r √p / |r|; middle(k): between magnitudes k and k + 1.
  template <class Middle>
  ESPALIER_RULE static uint32_t code(float z, int bits, const Middle& middle) {
    const float a = magnitude_of(z);
    uint32_t rank = 0;
    ESPALIER_UNROLL
    for (int k = 0; k < (1 << (bits - 1)) - 1; ++k) {
      rank += a > middle(k) ? 1U : 0U;
    }
    return rank | bits_of(z) >> 31 << (bits - 1);
  }

  ESPALIER_RULE static double root(double x) {
#ifdef __CUDACC__
    return sqrt(x);
#else
    return __builtin_sqrt(x);
#endif
  }
  /// √p / |r|; |r|² > 0.
  ESPALIER_RULE static float to_normal(double squares, int64_t p) {
    return static_cast<float>(root(static_cast<double>(p) / squares));
  }
  /// S, in the unit of x.
  ESPALIER_RULE static float scale_of(double squares, double product, int64_t p, Scaling scaling) {
    const double scale = squares / (product * root(static_cast<double>(p))) /
                         static_cast<double>(scaling.before) / static_cast<double>(scaling.after);
    return scale < static_cast<double>(kLargest) ? static_cast<float>(scale) : kLargest;
  }
  /// Element of y from t = (D H q)_i; `inverse_root`: 1 / √p.
  ESPALIER_RULE static float decoded(float t, float inverse_root, float scale) {
    float y = t * inverse_root * scale;
    y = y > kLargest ? kLargest : y;  // NaN propagates
    return y < -kLargest ? -kLargest : y;
  }
  ESPALIER_RULE static float inverse_root(int64_t p) {
    return static_cast<float>(1.0 / root(static_cast<double>(p)));
  }
};

}  // namespace espalier::kernels::wire
