#pragma once
// How the operations go over memory: typed access to views, and blocks of fixed size shared out to
// threads. A block is always computed by the same code whichever thread takes it, and sums are combined
// in block order, so no result depends on the number of threads.
#include <cstdint>

#include "src/core/stream.h"
#include "src/core/tensor.h"
#include "src/kernels/cpu/math.h"

namespace espalier::kernels::ESPALIER_ISA {

/// Elements of a block: long enough to hide a loop's ends, short enough for its operands to stay in L1.
inline constexpr int64_t kBlock = 4096;
/// Elements that are worth waking a thread for (a few microseconds of work).
inline constexpr int64_t kGrain = 16384;

[[gnu::always_inline]] inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
[[gnu::always_inline]] inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
[[gnu::always_inline]] inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Unlike Tensor::get, checks nothing: verify() has.
template <class T>
[[gnu::always_inline]] inline T* elements(const Tensor& t) {
  return static_cast<T*>(t.data);
}
template <class T>
[[gnu::always_inline]] inline T* row_of(const Tensor& t, int64_t row) {
  return static_cast<T*>(t.data) + row * t.stride;
}

/// Calls `body` with a value of the element type: float or bf16.
template <class Body>
inline void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16) {
    body(bf16{});
  } else {
    body(float{});
  }
}

/// body(i) for i in [0, blocks), by at most `threads` threads, fewer when there is little work;
/// `work` is the number of elements in all.
template <class Body>
inline void for_blocks(int threads, int64_t blocks, int64_t work, const Body& body) {
  const int64_t useful = least(threads, least(blocks, work / kGrain));
  if (useful <= 1) {
    for (int64_t i = 0; i < blocks; ++i) {
      body(i);
    }
    return;
  }
  const auto team = static_cast<int>(useful);
#pragma omp parallel for num_threads(team) schedule(static)
  for (int64_t i = 0; i < blocks; ++i) {
    body(i);
  }
}

/// body(first, n) for consecutive ranges of at most `length` elements that cover [0, count).
template <class Body>
inline void for_ranges(int threads, int64_t count, int64_t length, const Body& body) {
  for_blocks(threads, divide_up(count, length), count, [&](int64_t i) {
    body(i * length, least(length, count - i * length));
  });
}

/// body(row) for every row of a [rows, cols] matrix.
template <class Body>
inline void for_rows(int threads, int64_t rows, int64_t cols, const Body& body) {
  const int64_t together = most(1, kBlock / most(1, cols));
  for_blocks(threads, divide_up(rows, together), rows * cols, [&](int64_t i) {
    const int64_t end = least(rows, (i + 1) * together);
    for (int64_t row = i * together; row < end; ++row) {
      body(row);
    }
  });
}

/// Sum of term(i) over [0, n). Four running vectors hide the latency of the additions.
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
