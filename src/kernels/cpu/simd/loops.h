#pragma once
// Memory loops of the operations: typed access to views, and blocks of fixed size for threads. A
// block is always computed by the same code, and sums are combined in block order, so no result
// depends on the number of threads.
#include <cstdint>

#include "src/core/stream.h"
#include "src/core/tensor.h"
#include "src/kernels/cpu/simd/math.h"

namespace espalier::kernels::ESPALIER_ISA {

/// Elements of a block: long enough to hide loop overhead, short enough for its operands to stay in
/// L1.
inline constexpr int64_t kBlock = 4096;
/// Elements that justify one more thread (a few microseconds of work).
inline constexpr int64_t kGrain = 16384;

[[gnu::always_inline]] inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
[[gnu::always_inline]] inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
[[gnu::always_inline]] inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Unchecked, unlike Tensor::get: verify() has checked the arguments.
template <class T>
[[gnu::always_inline]] inline T* elements(const Tensor& t) {
  return static_cast<T*>(t.data);
}
template <class T>
[[gnu::always_inline]] inline T* row_of(const Tensor& t, int64_t row) {
  return static_cast<T*>(t.data) + row * t.stride;
}

/// Calls `body` with a value of the element type: float, bf16 or fp16.
template <class Body>
[[gnu::always_inline]] inline void with_type(DType dtype, const Body& body) {
  with_number(dtype, body);
}

/// The same, for an operand of a call that has elements of type T: bf16 and fp16 never mix in one
/// call (rules.h).
template <class T, class Body>
inline void with_type_beside(DType dtype, const Body& body) {
  if constexpr (sizeof(T) == sizeof(float)) {
    with_type(dtype, body);
  } else if (dtype == DType::fp32) {
    body(float{});
  } else {
    body(T{});
  }
}

/// Calls body(i) for i in [0, blocks), on at most `threads` threads, fewer if there is little work;
/// `work` is the total number of elements.
template <class Body>
inline void for_blocks(int threads, int64_t blocks, int64_t work, const Body& body) {
  const int64_t useful = least(threads, least(blocks, work / kGrain));
  if (useful <= 1) {
    for (int64_t i = 0; i < blocks; ++i) {
      body(i);
    }
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(useful)) schedule(static)
  for (int64_t i = 0; i < blocks; ++i) {
    body(i);
  }
}

/// Calls body(first, n) for consecutive ranges of at most `length` elements that cover [0, count).
template <class Body>
inline void for_ranges(int threads, int64_t count, int64_t length, const Body& body) {
  for_blocks(threads, divide_up(count, length), count,
             [&](int64_t i) { body(i * length, least(length, count - i * length)); });
}

/// Rows that an operation interleaves, so that they hide each other's latency.
inline constexpr int64_t kRowGroup = 4;

/// Calls body(first, n) for groups of n <= kRowGroup consecutive rows of a [rows, cols] matrix.
template <class Body>
inline void for_row_groups(int threads, int64_t rows, int64_t cols, const Body& body) {
  const int64_t together = most(kRowGroup, kBlock / most(1, cols) / kRowGroup * kRowGroup);
  for_blocks(threads, divide_up(rows, together), rows * cols, [&](int64_t i) {
    const int64_t end = least(rows, (i + 1) * together);
    for (int64_t first = i * together; first < end; first += kRowGroup) {
      body(first, least(kRowGroup, end - first));
    }
  });
}

/// Calls body(row) for every row of a [rows, cols] matrix.
template <class Body>
inline void for_rows(int threads, int64_t rows, int64_t cols, const Body& body) {
  for_row_groups(threads, rows, cols, [&](int64_t first, int64_t n) {
    for (int64_t row = first; row < first + n; ++row) {
      body(row);
    }
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
