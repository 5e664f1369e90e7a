#include "src/hub/transpose.h"

#include <algorithm>

#include "src/core/error.h"

namespace espalier::hub {
namespace {

/// 16 bytes.
template <class T>
using Row [[gnu::vector_size(16), gnu::aligned(alignof(T)), gnu::may_alias]] = T;
template <class T>
constexpr int kSide = 16 / sizeof(T);

/// Elements of the first half (kHalf = 0) or the second half of a and b, in turns.
template <class T, int kHalf, int... kIndex>
Row<T> interleaved(const Row<T>& a, const Row<T>& b,
                   std::integer_sequence<int, kIndex...> /*all*/) {
  return __builtin_shufflevector(a, b,
                                 (kHalf * kSide<T> / 2 + kIndex / 2 + kIndex % 2 * kSide<T>)...);
}

/// A square of kSide rows.
template <class T>
void transpose_square(const T* in, int64_t in_row, T* out, int64_t out_row) {
  constexpr int kRows = kSide<T>;
  constexpr auto kAll = std::make_integer_sequence<int, kRows>{};
  Row<T> rows[kRows];
  for (int i = 0; i < kRows; ++i) {
    rows[i] = *reinterpret_cast<const Row<T>*>(in + i * in_row);
  }
  for (int done = 1; done < kRows; done *= 2) {
    Row<T> next[kRows];
    for (int i = 0; i < kRows / 2; ++i) {
      next[2 * i] = interleaved<T, 0>(rows[i], rows[i + kRows / 2], kAll);
      next[2 * i + 1] = interleaved<T, 1>(rows[i], rows[i + kRows / 2], kAll);
    }
    std::ranges::copy(next, rows);
  }
  for (int i = 0; i < kRows; ++i) {
    *reinterpret_cast<Row<T>*>(out + i * out_row) = rows[i];
  }
}

/// By blocks that stay in the cache.
template <class T>
void transpose_part(const T* in, int64_t rows, int64_t cols, int64_t first, int64_t count, T* out) {
  constexpr int64_t kBlock = 64;
  static_assert(kBlock % kSide<T> == 0);
  in += first;
  const auto one_by_one = [&](int64_t row, int64_t row_end, int64_t col, int64_t col_end) {
    for (int64_t c = col; c < col_end; ++c) {
      for (int64_t r = row; r < row_end; ++r) {
        out[c * rows + r] = in[r * cols + c];
      }
    }
  };
  for (int64_t row = 0; row < rows; row += kBlock) {
    const int64_t row_end = std::min(row + kBlock, rows);
    const int64_t squares_end = row_end / kSide<T> * kSide<T>;
    for (int64_t col = 0; col < count; col += kBlock) {
      const int64_t col_end = std::min(col + kBlock, count);
      const int64_t square_cols = col_end / kSide<T> * kSide<T>;
      for (int64_t r = row; r < squares_end; r += kSide<T>) {
        for (int64_t c = col; c < square_cols; c += kSide<T>) {
          transpose_square(in + r * cols + c, cols, out + c * rows + r, rows);
        }
      }
      one_by_one(row, squares_end, square_cols, col_end);
      one_by_one(squares_end, row_end, col, col_end);
    }
  }
}

template <class T>
void transpose_tensor(const Tensor& in, int64_t first, const Tensor& out) {
  transpose_part(static_cast<const T*>(in.data), in.rows(), in.cols(), first, out.rows(),
                 static_cast<T*>(out.data));
}

}  // namespace

void transpose(const Tensor& in, int64_t first, const Tensor& out) {
  require(in.dtype == out.dtype && in.rows() == out.cols() && first >= 0 &&
              first + out.rows() <= in.cols(),
          "the columns are within the matrix", in.rows(), in.cols(), first, out.rows(), out.cols());
  size_of(in.dtype) == sizeof(uint16_t) ? transpose_tensor<uint16_t>(in, first, out)
                                        : transpose_tensor<uint32_t>(in, first, out);
}

void transpose_bytes(std::span<const uint8_t> in, int64_t rows, int64_t cols, int64_t first,
                     int64_t count, std::span<uint8_t> out) {
  transpose_part(in.data(), rows, cols, first, count, out.data());
}

}  // namespace espalier::hub
