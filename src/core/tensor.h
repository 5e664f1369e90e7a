#pragma once
// A tensor is a view: pointer, element type, shape. It owns nothing; Buffer (arena.h) owns memory.
// Row-major and contiguous, except that the matrix view may have a row stride (`stride`, in
// elements). Only kernels access device memory: `get` and `span` throw Bug there; core/mirror.h
// copies it to the host.
#include <span>

#include "src/core/error.h"
#include "src/core/types.h"

namespace espalier {

struct Tensor;

/// Throws Bug. Out of line, so that kernels compiled for several instruction sets share no inline
/// code.
[[noreturn]] void throw_no_access(DType wanted, const Tensor& tensor);

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::fp32;
  bool on_device = false;  ///< the host cannot read it
  Shape shape;
  int64_t stride = 0;  ///< elements from one row of the matrix view to the next

  Tensor() = default;
  Tensor(void* memory, DType type, const Shape& extents)
      : data(memory), dtype(type), shape(extents), stride(extents.cols()) {}

  explicit operator bool() const { return data != nullptr; }
  int64_t rows() const { return shape.rows(); }
  int64_t cols() const { return shape.cols(); }
  int64_t count() const { return shape.count(); }
  size_t bytes() const { return static_cast<size_t>(count()) * size_of(dtype); }
  bool contiguous() const { return stride == cols(); }

  /// Pointer to the elements; throws Bug if T is not the element type, or on a device.
  template <class T>
  [[gnu::always_inline]] inline T* get() const {
    if (dtype_of<std::remove_const_t<T>>() != dtype || on_device) [[unlikely]] {
      throw_no_access(dtype_of<std::remove_const_t<T>>(), *this);
    }
    return static_cast<T*>(data);
  }
  /// All elements of a contiguous tensor.
  template <class T>
  std::span<T> span() const {
    require(contiguous(), "span needs contiguous rows", stride, cols());
    return {get<T>(), static_cast<size_t>(count())};
  }

  /// Rows [first, first + n) of the matrix view.
  Tensor row_range(int64_t first, int64_t n) const {
    return part_at(first * stride, Shape{n, cols()});
  }
  /// Columns [first, first + n) of the matrix view; keeps the row stride.
  Tensor column_range(int64_t first, int64_t n) const { return part_at(first, Shape{rows(), n}); }
  /// The same elements under another shape.
  Tensor reshaped(const Shape& other) const {
    require(contiguous() && other.count() == count(), "reshape keeps all elements", other.count(),
            count());
    return as(dtype, other);
  }
  /// Elements [first, first + n) of a contiguous tensor, as a vector. An empty tensor stays empty.
  Tensor elements(int64_t first, int64_t n) const {
    return data == nullptr ? Tensor() : offset(first).as(dtype, Shape{n});
  }
  /// The same memory with another type and shape.
  Tensor as(DType type, const Shape& extents) const {
    Tensor other(data, type, extents);
    other.on_device = on_device;
    return other;
  }

 private:
  Tensor offset(int64_t elements) const {
    Tensor moved = *this;
    moved.data = static_cast<std::byte*>(data) + static_cast<size_t>(elements) * size_of(dtype);
    return moved;
  }
  Tensor part_at(int64_t first, const Shape& extents) const {
    Tensor part = offset(first).as(dtype, extents);
    part.stride = stride;
    return part;
  }
};

}  // namespace espalier
