#pragma once
// Sums and maxima over a row. The length alone fixes the order of additions: four running vectors,
// which hide the latency of an addition, then the lanes by halves.
#include <cstdint>

#include "src/kernels/cpu/simd/lanes.h"

namespace espalier::kernels::ESPALIER_ISA {

using SumVector [[gnu::vector_size(kLanes * 4), gnu::aligned(4), gnu::may_alias]] = float;

[[gnu::always_inline]] inline float sum_of_lanes(SumVector v) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    lane[i] = v[i];
  }
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
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
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a += term(at(i));
    b += term(at(i + kLanes));
    c += term(at(i + 2 * kLanes));
    d += term(at(i + 3 * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) {
    a += term(at(i));
  }
  float rest = 0;
  for (; i < n; ++i) {
    rest += term(x[i]);
  }
  return sum_of_lanes((a + b) + (c + d)) + rest;
}

/// The largest of `least` and x[i] over [0, n); ignores NaN.
[[gnu::always_inline]] inline float maximum_over(const float* x, int64_t n, float least) {
  const auto at = [x](int64_t i) { return *reinterpret_cast<const SumVector*>(x + i); };
  SumVector a = SumVector{} + least;
  SumVector b = a;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    a = at(i) > a ? at(i) : a;
    b = at(i + kLanes) > b ? at(i + kLanes) : b;
  }
  a = b > a ? b : a;
  for (; i < n; ++i) {
    least = x[i] > least ? x[i] : least;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    least = a[lane] > least ? a[lane] : least;
  }
  return least;
}

}  // namespace espalier::kernels::ESPALIER_ISA
