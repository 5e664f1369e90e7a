// One pass over values, by integers: they order floats as floats do, and NaN is just larger than
// the rest.
#include "src/kernels/cpu/wire/bucket.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

void measure_largest(const float* x, int64_t n, Measured& found) {
  int32_t largest = found.largest;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t magnitude = __builtin_bit_cast(int32_t, x[i]) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  found.largest = largest;
}

void measure_range(const float* x, int64_t n, Measured& found) {
  int32_t low = found.low;
  int32_t high = found.high;
#pragma omp simd reduction(min : low) reduction(max : high)
  for (int64_t i = 0; i < n; ++i) {
    const int32_t ordered = ordered_bits(__builtin_bit_cast(int32_t, x[i]));
    low = ordered < low ? ordered : low;
    high = ordered > high ? ordered : high;
  }
  found.low = low;
  found.high = high;
}

/// Sixteen sums side by side, in every instruction set.
void measure_sum(const float* x, int64_t n, Measured& found) {
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

}  // namespace

void measure(WireCode code, const float* x, int64_t n, Measured& found) {
  if (code == WireCode::maxmin) {
    measure_range(x, n, found);
    return;
  }
  measure_largest(x, n, found);
  if (code == WireCode::sign) {
    measure_sum(x, n, found);
  }
}

void join(Measured& found, const Measured& other) {
  found.largest = other.largest > found.largest ? other.largest : found.largest;
  found.low = other.low < found.low ? other.low : found.low;
  found.high = other.high > found.high ? other.high : found.high;
  found.sum += other.sum;
}

}  // namespace espalier::kernels::ESPALIER_ISA
