#pragma once
// The kept elements of a pruned matrix by rows and by columns, as unstructured products of a device
// read them (kernels.h, Csr), and what a library has worked out for them. Made by a kernel once for
// a mask.
//
// Both orders, as a product with the transpose has the same bits in each run only when it goes by
// rows of the transpose. Bytes: 12 a kept element, 4 a row and a column; category index. What a
// library keeps beside is scratch.
#include <array>

#include "src/core/stream.h"
#include "src/kernels/kernels.h"

namespace espalier::sparse {

class CsrList {
 public:
  CsrList() = default;
  /// Of a matrix whose positions kernels of `stream` read; of a dry stream takes the bytes alone.
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
  std::unique_ptr<kernels::Prepared> prepared_;  ///< goes before the memory
};

}  // namespace espalier::sparse
