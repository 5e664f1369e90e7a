#pragma once
// The kept blocks of a BlockMatrix by columns of blocks, as the transposed product goes over them;
// made in each call. Cost: a warp for each column of blocks goes through all rows of blocks, with a
// binary search in each.
#include "src/kernels/cuda/block/operands.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Those of column j are number j * most … j * most + count[j] - 1, rows ascending.
struct BlockColumns {
  BlockPiece* pieces;
  int32_t* rows;   ///< rows of blocks
  int32_t* count;  ///< [columns of blocks]
  int64_t most;    ///< rows of blocks of the matrix
};

size_t columns_bytes(const BlockMatrix& weight);
BlockColumns columns_of(Stream& stream, const BlockMatrix& weight, std::byte* memory);

}  // namespace espalier::kernels::ESPALIER_GPU
