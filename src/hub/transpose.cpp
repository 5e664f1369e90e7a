#include "src/hub/transpose.h"

#include <algorithm>

#include "src/core/error.h"

namespace espalier::hub {
namespace {

/// By squares that stay in the cache.
template <class T>
void transpose_part(const T* in, int64_t rows, int64_t cols, int64_t first, int64_t count, T* out) {
  constexpr int64_t kBlock = 32;
  for (int64_t row = 0; row < rows; row += kBlock) {
    const int64_t row_end = std::min(row + kBlock, rows);
    for (int64_t col = 0; col < count; col += kBlock) {
      const int64_t col_end = std::min(col + kBlock, count);
      for (int64_t c = col; c < col_end; ++c) {
        for (int64_t r = row; r < row_end; ++r) {
          out[c * rows + r] = in[r * cols + first + c];
        }
      }
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
