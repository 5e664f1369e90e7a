#pragma once
// A pruned matrix as kernels (kernels.h) see it: kept elements as positions, lists or blocks, and
// their values.
#include <cstdint>
#include <memory>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// Positions of the kept elements of a dense array [size], ascending. At most one form is set;
/// none: all are kept.
///   list     position of each kept element
///   bitmap   bit i of word i/64 is set if element i is kept; prefix_counts[j] - prefix_counts[0]:
///            number of kept elements before word 8 j
/// Positions of a slice of a larger array are a slice of that array's positions: element 0 has
/// number `first` there, which list entries include. A bitmap is cut at multiples of 512 (gather,
/// scatter).
struct Positions {
  int64_t size = 0;   ///< dense elements
  int64_t count = 0;  ///< kept elements
  const int32_t* list = nullptr;
  const uint64_t* bitmap = nullptr;
  const uint32_t* prefix_counts = nullptr;
  int64_t first = 0;
  bool all() const { return list == nullptr && bitmap == nullptr; }
};

/// Data that a backend precomputes for one matrix; owned by the matrix's owner.
class Prepared {
 public:
  Prepared() = default;
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  virtual ~Prepared() = default;
};

/// The kept elements of a matrix [rows, cols] by rows and by columns: CSR of it and of its
/// transpose, as built by `csr` from positions. Empty: kernels use the positions alone.
struct Csr {
  const int32_t* row_begin = nullptr;     ///< [rows + 1]: kept elements before each row
  const int32_t* column = nullptr;        ///< [count], by rows
  const int32_t* column_begin = nullptr;  ///< [cols + 1]: kept elements before each column
  const int32_t* row = nullptr;           ///< [count], by columns
  const int32_t* order = nullptr;         ///< [count], by columns: the element's index by rows
  std::unique_ptr<Prepared>* prepared = nullptr;  ///< precomputed for these lists
  explicit operator bool() const { return prepared != nullptr; }
};

/// The forms in which sparse products read the positions of a matrix: that of the product with W,
/// with its transpose, and of its gradient; or one that all three read. `rows`: that of products
/// with few rows (operations/generation.h).
enum class PositionForm : uint8_t { product, transposed, sampled, bits, rows };
inline constexpr size_t kPositionForms = 5;

/// Memory for forms of the positions of one matrix that a backend keeps between calls, instead of
/// making them in each; owned by the matrix's owner, for as long as positions do not change.
class KeptForms {
 public:
  KeptForms() = default;
  KeptForms(const KeptForms&) = delete;
  KeptForms& operator=(const KeptForms&) = delete;
  virtual ~KeptForms() = default;

  struct Place {
    std::byte* memory;
    bool* made;  ///< true once the memory holds the form; set by the kernel that builds it
  };
  /// Returns the memory of a form. A different `bytes` reallocates it and clears `made`.
  virtual Place place(PositionForm form, size_t bytes) = 0;
};

/// A matrix that keeps the elements at `positions` of the flattened [rows, cols].
struct SparseMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  Tensor values;  ///< any [positions.count], in the order of the positions
  Positions positions;
  Csr csr{};                   ///< of the same elements, or empty
  KeptForms* forms = nullptr;  ///< of the same elements; null: none are kept
};

/// A matrix that keeps whole blocks of height x width elements; blocks at the lower and right edge
/// are truncated. Values are ordered as in all packed arrays: row by row of the matrix. So a row of
/// blocks is a dense matrix: each of its rows holds the pieces of the kept blocks, contiguously.
struct BlockMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t height = 1;
  int64_t width = 1;
  Tensor values;                          ///< any [kept elements]
  const int32_t* block_begin = nullptr;   ///< [rows of blocks + 1]: blocks before each row
  const int32_t* value_begin = nullptr;   ///< [rows of blocks + 1]: kept elements before each row
  const int32_t* block_column = nullptr;  ///< [blocks]: column of blocks, ascending in each row
};

}  // namespace espalier::kernels
