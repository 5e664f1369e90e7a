#pragma once
// Gather and scatter of kept elements of dense arrays, and index lists.
#include "src/kernels/sparse_matrix.h"

namespace espalier::kernels {

/// packed[k] (+)= dense[position k]. dense any [size], packed any [count].
struct GatherArgs {
  Tensor dense, packed;
  Positions positions;
  bool accumulate = false;
};

/// dense = 0 except dense[position k] = packed[k]. packed, dense any.
struct ScatterArgs {
  Tensor packed, dense;
  Positions positions;
};

/// The arrays of Csr (sparse_matrix.h has their sizes), int32, of a flattened [rows, cols].
struct CsrArgs {
  int64_t rows = 0, cols = 0;
  Positions positions;
  Tensor row_begin, column, column_begin, row, order;
};

}  // namespace espalier::kernels
