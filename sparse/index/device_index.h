#pragma once
// The form of an index that kernels of a device read, made once for each mask; the host keeps the
// index itself. Category index.
//
//   DeviceIndex   positions: an int32 index as it is (4 bytes a kept element), any other as a
//                 bitmap with its prefix counts (0.133 bytes an element)
//   CsrList       the kept elements by rows and by columns, for unstructured products (kernels.h,
//                 Csr), and what a library has prepared for them (scratch). Both orders: a product
//                 with the transpose repeats its bits only when it goes by rows of the transpose.
//                 12 bytes a kept element, 4 a row and a column
#include <array>

#include "sparse/index/index.h"
#include "src/core/stream.h"

namespace espalier::sparse {

class DeviceIndex {
 public:
  DeviceIndex() = default;
  /// `index` is not full. Of a dry one only the bytes are allocated.
  DeviceIndex(Stream& stream, const Index& index);

  size_t bytes() const { return memory_.bytes(); }
  explicit operator bool() const { return static_cast<bool>(memory_.tensor()); }
  const kernels::Positions& positions() const { return positions_; }

 private:
  Buffer memory_;
  kernels::Positions positions_;
};

class CsrList {
 public:
  CsrList() = default;
  /// Of a matrix whose positions kernels of `stream` read; on a dry stream only the
  /// bytes are allocated.
  CsrList(Stream& stream, const kernels::Kernels& kernels, const Shape& shape,
          const kernels::Positions& positions);

  size_t bytes() const { return memory_.bytes(); }
  explicit operator bool() const { return static_cast<bool>(memory_.tensor()); }
  /// Empty when this is; valid while the list lives and stays where it is.
  kernels::Csr view();

 private:
  static constexpr int kArrays = 5;
  Tensor array(int which) const;

  std::array<int64_t, kArrays> counts_{};
  Buffer memory_;
  std::unique_ptr<kernels::Prepared> prepared_;  ///< freed before the memory
};

}  // namespace espalier::sparse
