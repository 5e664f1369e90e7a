#pragma once
// Loops over the values of a bucket, built from a codec's rules: statistics, codes, values. Sources
// that include this are compiled without contraction (CMakeLists.txt).
#include "src/kernels/cpu/simd/math.h"
#include "src/kernels/rules/wire/codecs.h"

namespace espalier::kernels::ESPALIER_ISA {

using wire::Carried;
using wire::Measured;

// Statistics compare integers: these order floats as floats do, with NaN just above the rest.

inline void measure_largest(const float* x, int64_t n, Measured& found) {
  int32_t largest = found.largest;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t magnitude = __builtin_bit_cast(int32_t, x[i]) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  found.largest = largest;
}

inline void measure_range(const float* x, int64_t n, Measured& found) {
  int32_t low = found.low;
  int32_t high = found.high;
#pragma omp simd reduction(min : low) reduction(max : high)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t ordered = wire::ordered_bits(__builtin_bit_cast(int32_t, x[i]));
    low = ordered < low ? ordered : low;
    high = ordered > high ? ordered : high;
  }
  found.low = low;
  found.high = high;
}

/// Sixteen interleaved sums, on every instruction set.
inline void measure_sum(const float* x, int64_t n, Measured& found) {
  constexpr int kSums = 16;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int j = 0; j < kSums; ++j) {
      sums[j] += __builtin_fabsf(x[i + j]);
    }
  }
  for (int j = 0; i + j < n; ++j) {
    sums[j] += __builtin_fabsf(x[i + j]);
  }
  double sum = 0;
  for (const double one : sums) {
    sum += one;
  }
  found.sum += sum;
}

/// Adds n values to the statistics.
template <Find kFind>
void measure(const float* x, int64_t n, Measured& found) {
  if constexpr (kFind == Find::range) {
    measure_range(x, n, found);
  } else {
    measure_largest(x, n, found);
  }
  if constexpr (kFind == Find::magnitudes) {
    measure_sum(x, n, found);
  }
}

inline void join(Measured& found, const Measured& other) {
  found.largest = other.largest > found.largest ? other.largest : found.largest;
  found.low = other.low < found.low ? other.low : found.low;
  found.high = other.high > found.high ? other.high : found.high;
  found.sum += other.sum;
}

/// codes[i] = the code of x[i], one per byte; `words`: one random word for each value, or null.
template <bool kRandom, class Encoder>
void encode_values(const Encoder& made, const float* __restrict x, int64_t n,
                   const uint32_t* __restrict words, uint8_t* __restrict codes) {
  const Encoder encoder = made;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(encoder.template code<kRandom>(x[i], kRandom ? words[i] : 0U));
  }
}

/// y[i] (+)= value(codes[i])
template <bool kAccumulate, class Code, class Value>
[[gnu::always_inline]] inline void decode_each(const Code* __restrict codes, int64_t n,
                                               float* __restrict y, const Value& value) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float one = value(codes[i]);
    y[i] = kAccumulate ? y[i] + one : one;
  }
}

template <bool kAccumulate, class Decoder>
void decode_values(const Decoder& made, const uint8_t* codes, int64_t n, float* y) {
  const Decoder decoder = made;
  if constexpr (requires { decoder.huge; }) {  // one branch per bucket instead of one per value
    decoder.huge
        ? decode_each<kAccumulate>(codes, n, y, [=](uint8_t c) { return decoder.huge_value(c); })
        : decode_each<kAccumulate>(codes, n, y, [=](uint8_t c) { return decoder.usual_value(c); });
  } else {
    decode_each<kAccumulate>(codes, n, y, [=](uint8_t c) { return decoder.value(c); });
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
