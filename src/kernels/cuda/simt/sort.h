#pragma once
// Rows sorted by their id on the device; rows with the same id keep their order. A radix sort of 8
// bits a pass: counts of each tile, their sums, then every row to its place. No atomics but on
// counts, which have no order.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

struct SortedRows {
  const int32_t* ids;   ///< [n] ascending; `limit` for ids outside [0, limit)
  const int32_t* rows;  ///< [n]
};

/// Bytes of memory that sorting n rows takes.
size_t sort_bytes(int64_t n);
SortedRows sort_rows(Stream& stream, const Tensor& ids, int64_t limit, std::byte* memory);

}  // namespace espalier::kernels::ESPALIER_GPU
