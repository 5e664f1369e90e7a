#pragma once
// Sums and maxima over a row. The order of additions is fixed by the length alone: four running vectors,
// which hide the latency of an addition, then the lanes halves onto halves.
#include <cstdint>

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int kSumLanes = __BIGGEST_ALIGNMENT__ / 4;  ///< floats in a vector register
using SumVector [[gnu::vector_size(kSumLanes * 4), gnu::aligned(4), gnu::may_alias]] = float;

[[gnu::always_inline]] inline float sum_of_lanes(SumVector v) {
  float lane[kSumLanes];
  for (int i = 0; i < kSumLanes; ++i) {
    lane[i] = v[i];
  }
#pragma GCC unroll 4
  for (int half = kSumLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      lane[i] += lane[i + half];
    }
  }
  return lane[0];
}

/// Sum of term(x[i]) over [0, n); `term` must take a float and a SumVector.
template <class Term>
[[gnu::always_inline]] inline float sum_over(const float* x, int64_t n, const Term& term) {
  const auto at = [x](int64_t i) { return *reinterpret_cast<const SumVector*>(x + i); };
  SumVector a{};
  SumVector b{};
  SumVector c{};
  SumVector d{};
  int64_t i = 0;
  for (; i + 4 * kSumLanes <= n; i += 4 * kSumLanes) {
    a += term(at(i));
    b += term(at(i + kSumLanes));
    c += term(at(i + 2 * kSumLanes));
    d += term(at(i + 3 * kSumLanes));
  }
  for (; i + kSumLanes <= n; i += kSumLanes) {
    a += term(at(i));
  }
  float rest = 0;
  for (; i < n; ++i) {
    rest += term(x[i]);
  }
  return sum_of_lanes((a + b) + (c + d)) + rest;
}

/// Sum of term(i) over [0, n), for terms that only a loop of scalars can express.
template <class Term>
[[gnu::always_inline]] inline float sum_of(int64_t n, const Term& term) {
  const int64_t quarter = n / 64 * 16;
  float a = 0;
  float b = 0;
  float c = 0;
  float d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < quarter; ++i) {
    a += term(i);
    b += term(i + quarter);
    c += term(i + 2 * quarter);
    d += term(i + 3 * quarter);
  }
#pragma omp simd reduction(+ : a)
  for (int64_t i = 4 * quarter; i < n; ++i) {
    a += term(i);
  }
  return (a + b) + (c + d);
}

/// The largest of `least` and term(i) over [0, n); NaN terms are passed over.
template <class Term>
[[gnu::always_inline]] inline float maximum_of(int64_t n, float least, const Term& term) {
  const int64_t half = n / 32 * 16;
  float a = least;
  float b = least;
#pragma omp simd reduction(max : a, b)
  for (int64_t i = 0; i < half; ++i) {
    const float first = term(i);
    const float second = term(i + half);
    a = first > a ? first : a;
    b = second > b ? second : b;
  }
#pragma omp simd reduction(max : a)
  for (int64_t i = 2 * half; i < n; ++i) {
    const float value = term(i);
    a = value > a ? value : a;
  }
  return a > b ? a : b;
}

}  // namespace espalier::kernels::ESPALIER_ISA
