#pragma once
// Transposes parts of matrices in memory.
#include <cstdint>
#include <span>
#include <vector>

#include "src/core/tensor.h"

namespace espalier::hub {

/// The first `size` elements of a buffer, which grows when it is too small and never shrinks: new
/// memory costs about as much as reading it.
template <class T>
std::span<T> grown(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) {
    buffer.resize(size);
  }
  return std::span(buffer).first(size);
}

/// out [n, R] = columns [first, first + n) of in [R, C], transposed. Elements of 2 or 4 bytes, of
/// one type; both contiguous.
void transpose(const Tensor& in, int64_t first, const Tensor& out);
/// The same of bytes: in [rows, cols], out [count, rows].
void transpose_bytes(std::span<const uint8_t> in, int64_t rows, int64_t cols, int64_t first,
                     int64_t count, std::span<uint8_t> out);

}  // namespace espalier::hub
