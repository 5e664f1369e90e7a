#include "src/kernels/cuda/block/columns.h"

#include "src/kernels/cuda/simt/reduce.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 4;

struct Pattern {
  const int32_t *block_begin, *value_begin, *block_column;
  int64_t rows, height, width;
  int32_t across, down;  ///< columns and rows of blocks
};

/// Number of the block at row `row` and column `column` of blocks, or -1 if it is not kept.
__device__ int32_t find_block(const Pattern& of, int64_t row, int32_t column) {
  int32_t low = of.block_begin[row];
  const int32_t end = of.block_begin[row + 1];
  int32_t high = end;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (of.block_column[middle] < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < end && of.block_column[low] == column ? low : -1;
}

__device__ BlockPiece piece_of(const Pattern& of, int64_t row, int32_t block) {
  const int64_t rows = least(of.height, of.rows - row * of.height);
  const int64_t first = of.value_begin[row];
  const int64_t before = (block - of.block_begin[row]) * of.width;
  return {static_cast<int32_t>(first + before),
          static_cast<int32_t>((of.value_begin[row + 1] - first) / rows)};
}

__global__ void __launch_bounds__(32 * kWarps) list_columns(Pattern of, BlockColumns to) {
  const auto column = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / 32);
  if (column >= of.across) {
    return;
  }
  const unsigned lane = threadIdx.x % 32;
  const int64_t first = column * to.most;
  int32_t count = 0;
  for (int32_t begin = 0; begin < of.down; begin += 32) {
    const int64_t row = begin + static_cast<int32_t>(lane);
    const int32_t block = row < of.down ? find_block(of, row, column) : -1;
    const unsigned found = __ballot_sync(kAllLanes, block >= 0 ? 1 : 0);
    if (block >= 0) {
      const int64_t at = first + count + __popc(found & ((1U << lane) - 1));
      to.rows[at] = static_cast<int32_t>(row);
      to.pieces[at] = piece_of(of, row, block);
    }
    count += __popc(found);
  }
  if (lane == 0) {
    to.count[column] = count;
  }
}

}  // namespace

size_t columns_bytes(const BlockMatrix& weight) {
  const int64_t across = divide_up(weight.cols, weight.width);
  const int64_t down = divide_up(weight.rows, weight.height);
  return static_cast<size_t>(across * down) * (sizeof(BlockPiece) + sizeof(int32_t)) +
         static_cast<size_t>(across) * sizeof(int32_t);
}

BlockColumns columns_of(Stream& stream, const BlockMatrix& weight, std::byte* memory) {
  const int64_t across = divide_up(weight.cols, weight.width);
  const int64_t down = divide_up(weight.rows, weight.height);
  auto* const pieces = reinterpret_cast<BlockPiece*>(memory);
  auto* const rows = reinterpret_cast<int32_t*>(pieces + across * down);
  const BlockColumns columns{
      .pieces = pieces, .rows = rows, .count = rows + across * down, .most = down};
  const Pattern pattern{.block_begin = weight.block_begin,
                        .value_begin = weight.value_begin,
                        .block_column = weight.block_column,
                        .rows = weight.rows,
                        .height = weight.height,
                        .width = weight.width,
                        .across = static_cast<int32_t>(across),
                        .down = static_cast<int32_t>(down)};
  launch(list_columns,
         {.name = "list_columns", .grid = blocks_for(across, kWarps), .block = 32 * kWarps}, stream,
         pattern, columns);
  return columns;
}

}  // namespace espalier::kernels::ESPALIER_GPU
