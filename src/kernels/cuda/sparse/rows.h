#pragma once
// The rows of a sparse weight, of single elements or of blocks, as product kernels read them: start
// of a row's values, their number, and the column of each.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

struct SparseRow {
  int64_t value, count;
  int64_t base;  ///< offset of the row, used by `column`
};

/// Number of entries of the ascending list that are below `limit`.
__device__ __forceinline__ int64_t count_below(const int32_t* list, int64_t n, int64_t limit) {
  int64_t low = 0;
  int64_t high = n;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (list[middle] < limit) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Elements at the positions of a list, or all elements.
struct SparseRows {
  const int32_t* list;   ///< null: all elements
  const int32_t* begin;  ///< [rows + 1]: kept elements before each row
  int64_t rows;
  int64_t cols;  ///< distance between positions of neighbouring rows; 0: the list has columns
  int64_t first;

  __device__ SparseRow row(int64_t n) const {
    return {begin[n], int64_t{begin[n + 1]} - begin[n], n * cols};
  }
  __device__ int64_t column(const SparseRow& row, int64_t j) const {
    return list == nullptr ? j : list[row.value + j] - first - row.base;
  }
};

struct BlockRows {
  const int32_t *block_begin, *value_begin, *block_column;
  int64_t rows, cols, height, width;

  __device__ SparseRow row(int64_t n) const {
    const int64_t of = quotient(n, height);
    const int64_t rows_here = least(height, rows - of * height);
    const int64_t count = (value_begin[of + 1] - value_begin[of]) / rows_here;
    return {value_begin[of] + n % height * count, count, block_begin[of]};
  }
  __device__ int64_t column(const SparseRow& row, int64_t j) const {
    const int64_t block = quotient(j, width);
    return (block_column[row.base + block] - block) * width + j;
  }
};

/// Computes, in `memory`, the lists that the positions lack; see rows_bytes.
SparseRows rows_of(Stream& stream, const SparseMatrix& weight, std::byte* memory);
BlockRows rows_of(Stream& stream, const BlockMatrix& weight, std::byte* memory);
size_t rows_bytes(const SparseMatrix& weight);
size_t rows_bytes(const BlockMatrix& weight);

}  // namespace espalier::kernels::ESPALIER_GPU
