#pragma once
// Checks of kernel arguments (verify.h). They take a name, so that the message identifies the
// tensor.
#include <algorithm>

#include "src/kernels/verify/verify.h"

namespace espalier::kernels {

inline void is_fp32(const char* name, const Tensor& t) {
  require(t.dtype == DType::fp32, "tensor must be fp32", name, name_of(t.dtype));
}

inline void is_any(const char* name, const Tensor& t) {
  require(is_number(t.dtype), "tensor must be fp32, bf16 or fp16", name, name_of(t.dtype));
}

/// bf16 and fp16 never mix in one call.
inline void is_beside(const char* name, const Tensor& t, const Tensor& other) {
  is_any(name, t);
  require(t.dtype == DType::fp32 || other.dtype == DType::fp32 || t.dtype == other.dtype,
          "a call mixes bf16 and fp16", name, name_of(t.dtype), name_of(other.dtype));
}

inline void is_same_type(const char* name, const Tensor& t, const Tensor& other) {
  require(t.dtype == other.dtype, "tensor must have the type of another operand", name,
          name_of(t.dtype), name_of(other.dtype));
}

inline void is_int32(const char* name, const Tensor& t) {
  require(t.dtype == DType::int32, "tensor must be int32", name, name_of(t.dtype));
}

/// `n` contiguous elements.
inline void is_flat(const char* name, const Tensor& t, int64_t n) {
  require(static_cast<bool>(t) || n == 0, "tensor is missing", name);
  require(t.count() == n && t.contiguous(), "tensor must hold this many elements side by side",
          name, t.shape.text(), n);
}

inline void is_matrix(const char* name, const Tensor& t, int64_t rows, int64_t cols) {
  require(static_cast<bool>(t) || rows * cols == 0, "tensor is missing", name);
  require(t.rows() == rows && t.cols() == cols && t.stride >= cols,
          "tensor must be a matrix of this shape", name, t.shape.text(), rows, cols);
}

/// A matrix of x's type and shape.
inline void is_matrix_like(const Tensor& x, const char* name, const Tensor& t) {
  is_same_type(name, t, x);
  is_matrix(name, t, x.rows(), x.cols());
}

inline void is_fp32_vector(const char* name, const Tensor& t, int64_t n) {
  is_fp32(name, t);
  is_flat(name, t, n);
}

/// Element-wise operands of one type: x, and y of as many elements.
inline void is_elementwise(const Tensor& x, const char* name, const Tensor& y) {
  is_any("x", x);
  is_flat("x", x, x.count());
  is_same_type(name, y, x);
  is_flat(name, y, x.count());
}

inline void is_positions(const Positions& positions) {
  require(positions.list == nullptr || positions.bitmap == nullptr, "positions have one form");
  require(positions.count >= 0 && positions.count <= positions.size, "kept must be within size",
          positions.count, positions.size);
  require(!positions.all() || positions.count == positions.size || positions.count == 0,
          "positions without list or bitmap keep all", positions.count, positions.size);
  require(positions.bitmap == nullptr || positions.prefix_counts != nullptr,
          "a bitmap needs its prefix counts");
}

inline void is_any_vector(const char* name, const Tensor& t, int64_t n) {
  is_any(name, t);
  is_flat(name, t, n);
}

/// Throws Bug unless `rows` are whole images; returns their number.
inline int64_t images_of(const Window& window, int64_t rows) {
  require(window.height > 0 && window.width > 0 && window.stride > 0 && window.padding >= 0 &&
              window.padding < window.extent &&
              window.extent <= std::min(window.height, window.width) + 2 * window.padding,
          "a window fits into its image", window.height, window.width, window.extent, window.stride,
          window.padding);
  require(rows % window.pixels() == 0, "rows are whole images", rows, window.pixels());
  return rows / window.pixels();
}

}  // namespace espalier::kernels
