#include "src/kernels/cpu/wire/values.h"

#include "src/kernels/cpu/simd/math.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// Adding it rounds to an integer, to nearest even, which the low bits then hold.
constexpr float kRound = 12582912.0F;  // 1.5 * 2^23

/// Uniform in (-1/2, 1/2), 15 bits: its sum with a number below 256 keeps all of them, and rounding
/// an integer that it was added to gives that integer.
[[gnu::always_inline]] inline float dither(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 17)) * 0x1p-15F + (0x1p-16F - 0.5F);
}

/// In units of the code.
[[gnu::always_inline]] inline float scaled(float x, Scaling to) { return x * to.before * to.after; }

[[gnu::always_inline]] inline uint8_t rounded(float t) {
  return static_cast<uint8_t>(__builtin_bit_cast(uint32_t, t + kRound));
}

template <bool kRandom>
void encode_linear(const BucketEncoder& bucket, const float* __restrict x, int64_t n,
                   const uint32_t* __restrict words, uint8_t* __restrict codes) {
  const Scaling to = bucket.to;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    float t = scaled(x[i], to);
    if constexpr (kRandom) {
      t = t > 127.0F ? 127.0F : t;
      t = t < -127.0F ? -127.0F : t;
      t += dither(words[i]);
    }
    codes[i] = rounded(t);
  }
}

template <bool kRandom>
void encode_maxmin(const BucketEncoder& bucket, const float* __restrict x, int64_t n,
                   const uint32_t* __restrict words, uint8_t* __restrict codes) {
  const Scaling to = bucket.to;
  const float least = bucket.least;
  const float top = bucket.top;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    float t = (x[i] * to.before - least) * to.after;
    t = t > top ? top : t;
    if constexpr (kRandom) {
      t += dither(words[i]);
    }
    codes[i] = rounded(t);
  }
}

/// Normal numbers round by an integer sum over their bits, subnormal ones by a sum with a float
/// whose last bit is their unit.
template <int kExponentBits, bool kRandom>
void encode_fp8(const BucketEncoder& bucket, const float* __restrict x, int64_t n,
                const uint32_t* __restrict words, uint8_t* __restrict codes) {
  constexpr int kMantissaBits = 7 - kExponentBits;
  constexpr int kDropped = 23 - kMantissaBits;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr uint32_t kRebias = (127U - kBias) << kMantissaBits;
  constexpr float kLeastNormal = __builtin_bit_cast(float, (128U - kBias) << 23);
  constexpr float kUnit = kLeastNormal / (1 << kMantissaBits);
  constexpr float kToUnits = kRound * kUnit;
  const Scaling to = bucket.to;
  const float top = bucket.top;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    float v = __builtin_fabsf(scaled(x[i], to));
    v = v > top ? top : v;
    const uint32_t bits = __builtin_bit_cast(uint32_t, v);
    uint32_t up = 0;
    float small = v;
    if constexpr (kRandom) {
      up = words[i] >> (32 - kDropped);
      small += dither(words[i]) * kUnit;
    } else {
      up = (1U << (kDropped - 1)) - 1 + ((bits >> kDropped) & 1U);
    }
    const uint32_t normal = ((bits + up) >> kDropped) - kRebias;
    const uint32_t units = __builtin_bit_cast(uint32_t, small + kToUnits);
    const uint32_t code = v < kLeastNormal ? units : normal;
    const uint32_t sign = __builtin_bit_cast(uint32_t, x[i]) >> 24 & 0x80U;
    codes[i] = static_cast<uint8_t>((code & 0x7fU) | sign);
  }
}

/// The rank of the nearest magnitude.
[[gnu::always_inline]] inline int32_t nearest(const MagnitudeTable& table, float a) {
  int32_t cell = (__builtin_bit_cast(int32_t, a) >> table.shift) - table.first;
  cell = cell < 0 ? 0 : cell;
  cell = cell < table.cells ? cell : table.cells - 1;
  return table.rank[cell] + (a > table.threshold[cell] ? 1 : 0);
}

/// The rank of one of the two magnitudes around a, the nearer more often.
[[gnu::always_inline]] inline int32_t around(const MagnitudeTable& table, float a, int32_t last,
                                             uint32_t word) {
  const int32_t near = nearest(table, a);
  const int32_t below = near - (table.magnitude[near] > a ? 1 : 0);
  const int32_t above = below < last ? below + 1 : last;
  const float low = table.magnitude[below];
  const float drawn = static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24F;
  return drawn * (table.magnitude[above] - low) < a - low ? above : below;
}

/// kOffset: ranks are counted from 127, of which there are only 127 below.
template <bool kOffset, bool kRandom>
void encode_magnitudes(const BucketEncoder& bucket, const float* __restrict x, int64_t n,
                       const uint32_t* __restrict words, uint8_t* __restrict codes) {
  const MagnitudeTable& table = *bucket.table;
  const Scaling to = bucket.to;
  const int32_t last = table.count - 1;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float a = __builtin_fabsf(scaled(x[i], to));
    int32_t rank = 0;
    if constexpr (kRandom) {
      rank = around(table, a, last, words[i]);
    } else {
      rank = nearest(table, a);
    }
    const int32_t sign = __builtin_bit_cast(int32_t, x[i]) >> 31;  // 0 or -1
    if constexpr (kOffset) {
      const int32_t down = rank < 127 ? rank : 127;
      codes[i] = static_cast<uint8_t>(127 + (sign < 0 ? -down : rank));
    } else {
      codes[i] = static_cast<uint8_t>(rank | (sign & 0x80));
    }
  }
}

/// A search by halves among 2^kSteps magnitudes of the bucket's own.
template <int kSteps>
void encode_own(const BucketEncoder& bucket, const float* __restrict x, int64_t n,
                uint8_t* __restrict codes) {
  const float* __restrict middle = bucket.middle;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float a = __builtin_fabsf(x[i]);
    int32_t rank = 0;
#pragma GCC unroll 8
    for (int step = kSteps - 1; step >= 0; --step) {
      const int32_t half = 1 << step;
      rank += a > middle[rank + half - 1] ? half : 0;
    }
    const int32_t negative = __builtin_bit_cast(int32_t, x[i]) < 0 ? 1 << kSteps : 0;
    codes[i] = static_cast<uint8_t>(rank + negative);
  }
}

void encode_table(const BucketEncoder& bucket, const float* x, int64_t n, uint8_t* codes) {
  switch (bucket.magnitudes) {
    case 1:
      return encode_own<0>(bucket, x, n, codes);
    case 2:
      return encode_own<1>(bucket, x, n, codes);
    case 4:
      return encode_own<2>(bucket, x, n, codes);
    case 8:
      return encode_own<3>(bucket, x, n, codes);
    case 16:
      return encode_own<4>(bucket, x, n, codes);
    case 32:
      return encode_own<5>(bucket, x, n, codes);
    case 64:
      return encode_own<6>(bucket, x, n, codes);
    default:
      return encode_own<7>(bucket, x, n, codes);
  }
}

void encode_sign(const float* __restrict x, int64_t n, uint8_t* __restrict codes) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(__builtin_bit_cast(uint32_t, x[i]) >> 31);
  }
}

template <bool kRandom>
void encode_as(WireCode code, const BucketEncoder& bucket, const float* x, int64_t n,
               const uint32_t* words, uint8_t* codes) {
  switch (code) {
    case WireCode::linear8:
      return encode_linear<kRandom>(bucket, x, n, words, codes);
    case WireCode::maxmin:
      return encode_maxmin<kRandom>(bucket, x, n, words, codes);
    case WireCode::fp8_e5m2:
      return encode_fp8<5, kRandom>(bucket, x, n, words, codes);
    case WireCode::fp8_e4m3:
      return encode_fp8<4, kRandom>(bucket, x, n, words, codes);
    case WireCode::dynamic8_bnb:
      return encode_magnitudes<true, kRandom>(bucket, x, n, words, codes);
    case WireCode::dynamic8:
      return encode_magnitudes<false, kRandom>(bucket, x, n, words, codes);
    case WireCode::table:
      return encode_table(bucket, x, n, codes);
    case WireCode::sign:
      return encode_sign(x, n, codes);
    default:  // static8, mantissa8
      return encode_magnitudes<false, false>(bucket, x, n, words, codes);
  }
}

}  // namespace

void encode_values(const WireFormat& format, const BucketEncoder& bucket, const float* x, int64_t n,
                   const uint32_t* words, uint8_t* codes) {
  if (bucket.bad) {
    for (int64_t i = 0; i < n; ++i) {
      codes[i] = 0;
    }
  } else if (words != nullptr) {
    encode_as<true>(format.code, bucket, x, n, words, codes);
  } else {
    encode_as<false>(format.code, bucket, x, n, words, codes);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
