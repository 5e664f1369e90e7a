#include "src/kernels/cuda/sparse/rows.h"

#include "src/kernels/cuda/index/positions.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

__global__ void __launch_bounds__(256) find_rows(SparseRows of, int64_t count, int32_t* begin) {
  const int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (n <= of.rows) {
    const int64_t place = n * of.cols;
    begin[n] = static_cast<int32_t>(
        of.list != nullptr ? count_below(of.list, count, place + of.first) : least(place, count));
  }
}

}  // namespace

size_t rows_bytes(const SparseMatrix& weight) {
  if (weight.csr) {
    return 1;
  }
  const int64_t listed = weight.positions.bitmap != nullptr ? weight.positions.count : 0;
  return static_cast<size_t>(weight.rows + 1 + listed) * sizeof(int32_t);
}

SparseRows rows_of(Stream& stream, const SparseMatrix& weight, std::byte* memory) {
  if (weight.csr) {
    return {.list = weight.csr.column,
            .begin = weight.csr.row_begin,
            .rows = weight.rows,
            .cols = 0,
            .first = 0};
  }
  const Positions& positions = weight.positions;
  auto* begin = reinterpret_cast<int32_t*>(memory);
  SparseRows rows{.list = positions.list,
                  .begin = begin,
                  .rows = weight.rows,
                  .cols = weight.cols,
                  .first = positions.first};
  if (positions.bitmap != nullptr) {
    int32_t* const list = begin + weight.rows + 1;
    list_bitmap(stream, positions, list);
    rows.list = list;
    rows.first = 0;
  }
  launch(find_rows, {.name = "find_rows", .grid = blocks_for(weight.rows + 1, 256)}, stream, rows,
         positions.count, begin);
  return rows;
}

size_t rows_bytes(const BlockMatrix&) { return 1; }

BlockRows rows_of(Stream&, const BlockMatrix& weight, std::byte*) {
  return {.block_begin = weight.block_begin,
          .value_begin = weight.value_begin,
          .block_column = weight.block_column,
          .rows = weight.rows,
          .cols = weight.cols,
          .height = weight.height,
          .width = weight.width};
}

}  // namespace espalier::kernels::ESPALIER_GPU
