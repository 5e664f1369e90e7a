#pragma once
// What kernels (kernels.h) see of a pruned matrix: which elements are kept, as positions, lists or
// blocks, and their values.
#include <cstdint>
#include <memory>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// Which elements of a dense array [size] are kept, ascending. Exactly one form is set; none: all.
/// bitmap: bit i of word i/64 says that element i is kept; ranks[j] - ranks[0]: kept ones before
/// word 8 j. Positions of a run of a larger array are cut out of that array's: element 0 is then
/// number `first` there, in which a list counts; a bitmap is cut at multiples of 512 (gather,
/// scatter).
struct Positions {
  int64_t size = 0;   ///< dense elements
  int64_t count = 0;  ///< kept elements
  const int32_t* list = nullptr;
  const uint64_t* bitmap = nullptr;
  const uint32_t* ranks = nullptr;
  int64_t first = 0;
  bool all() const { return list == nullptr && bitmap == nullptr; }
};

/// What a backend has worked out for one matrix, kept by whoever owns that.
class Prepared {
 public:
  Prepared() = default;
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  virtual ~Prepared() = default;
};

/// The kept elements of a matrix [rows, cols] by rows, and once more by columns (CSR of it and of
/// its transpose), as `csr` makes them of positions. Empty: kernels read the positions alone.
struct Csr {
  const int32_t* row_begin = nullptr;     ///< [rows + 1]: kept elements before each row
  const int32_t* column = nullptr;        ///< [count], by rows
  const int32_t* column_begin = nullptr;  ///< [cols + 1]: kept elements before each column
  const int32_t* row = nullptr;           ///< [count], by columns
  const int32_t* order = nullptr;         ///< [count], by columns: the element's place by rows
  std::unique_ptr<Prepared>* prepared = nullptr;  ///< goes with these lists
  explicit operator bool() const { return prepared != nullptr; }
};

/// A matrix of which the elements at `positions` of the flattened [rows, cols] are kept.
struct SparseMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  Tensor values;  ///< any [positions.count], in the order of the positions
  Positions positions;
  Csr csr{};  ///< of the same elements, or empty
};

/// A matrix of which whole blocks of height x width elements are kept; blocks at the lower and
/// right edge are cut off by it. Values have the order of all packed arrays: row by row of the
/// matrix. So one row of blocks is a dense matrix: each of its rows holds the kept blocks' pieces
/// side by side.
struct BlockMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t height = 1;
  int64_t width = 1;
  Tensor values;                          ///< any [kept elements]
  const int32_t* block_begin = nullptr;   ///< [rows of blocks + 1]: blocks before each
  const int32_t* value_begin = nullptr;   ///< [rows of blocks + 1]: kept elements before each
  const int32_t* block_column = nullptr;  ///< [blocks]: column of blocks, ascending in each row
};

}  // namespace espalier::kernels
