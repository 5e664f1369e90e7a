#pragma once
// The kept blocks of a BlockMatrix listed by columns of blocks, for the transposed product. Each
// call builds the lists. Cost: one warp per column of blocks visits all rows of blocks, with a
// binary search in each.
#include "src/kernels/cuda/block/operands.h"

namespace espalier::kernels::ESPALIER_GPU {

/// The blocks of column j are j * most … j * most + count[j] - 1, with rows ascending.
struct BlockColumns {
  BlockPiece* pieces;
  int32_t* rows;   ///< rows of blocks
  int32_t* count;  ///< [columns of blocks]
  int64_t most;    ///< number of rows of blocks in the matrix
};

size_t columns_bytes(const BlockMatrix& weight);
BlockColumns columns_of(Stream& stream, const BlockMatrix& weight, std::byte* memory);

}  // namespace espalier::kernels::ESPALIER_GPU
