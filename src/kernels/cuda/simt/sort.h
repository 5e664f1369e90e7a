#pragma once
// Sorts rows by id on the device; rows with the same id keep their order. Radix sort, 8 bits per
// pass: counts per tile, their prefix sums, then a scatter of all rows. Atomics are used only for
// counts, where the order does not matter.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

struct SortedRows {
  const int32_t* ids;   ///< [n] ascending; `limit` for ids outside [0, limit)
  const int32_t* rows;  ///< [n]
};

/// Bytes of memory for sorting n rows.
size_t sort_bytes(int64_t n);
SortedRows sort_rows(Stream& stream, const Tensor& ids, int64_t limit, std::byte* memory);

}  // namespace espalier::kernels::ESPALIER_GPU
