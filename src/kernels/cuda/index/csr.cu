// Kept elements by rows and by columns (CSR and its transpose), built once per mask. The positions
// are listed and split into rows and columns; a stable sort of the columns gives the order of the
// transpose.
#include <algorithm>

#include "src/kernels/cuda/index/positions.h"
#include "src/kernels/cuda/simt/sort.h"
#include "src/kernels/cuda/sparse/rows.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

struct Lists {
  int32_t *row_begin, *column, *column_begin, *row, *order;
  int64_t rows, cols, count;
};

__device__ __forceinline__ int64_t this_thread() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

/// `list` is null if all elements are kept.
__global__ void __launch_bounds__(256)
    list_places(const int32_t* list, int64_t first, Lists lists) {
  const int64_t k = this_thread();
  if (k < lists.count) {
    lists.column[k] = static_cast<int32_t>(list == nullptr ? k : list[k] - first);
  }
}

/// Runs before cut_columns, while `column` still contains positions.
__global__ void __launch_bounds__(256) begin_rows(Lists lists) {
  const int64_t n = this_thread();
  if (n <= lists.rows) {
    lists.row_begin[n] =
        static_cast<int32_t>(count_below(lists.column, lists.count, n * lists.cols));
  }
}

__global__ void __launch_bounds__(256) cut_columns(Lists lists) {
  const int64_t k = this_thread();
  if (k < lists.count) {
    lists.column[k] = static_cast<int32_t>(lists.column[k] % lists.cols);
  }
}

__global__ void __launch_bounds__(256) list_columns(Lists lists, SortedRows sorted) {
  const int64_t j = this_thread();
  if (j < lists.count) {
    const int32_t k = sorted.rows[j];
    lists.order[j] = k;
    lists.row[j] =
        static_cast<int32_t>(count_below(lists.row_begin, lists.rows + 1, int64_t{k} + 1) - 1);
  }
  if (j <= lists.cols) {
    lists.column_begin[j] = static_cast<int32_t>(count_below(sorted.ids, lists.count, j));
  }
}

int32_t* ints(const Tensor& t) { return static_cast<int32_t*>(t.data); }

}  // namespace

void csr(Stream& stream, const CsrArgs& args) {
  const Positions& positions = args.positions;
  std::byte* const memory = stream.workspace(sort_bytes(positions.count));
  const Lists lists{ints(args.row_begin),
                    ints(args.column),
                    ints(args.column_begin),
                    ints(args.row),
                    ints(args.order),
                    args.rows,
                    args.cols,
                    positions.count};
  if (positions.bitmap != nullptr) {
    list_bitmap(stream, positions, lists.column);
  } else {
    launch(list_places, {.name = "csr_places", .grid = blocks_for(lists.count, 256)}, stream,
           positions.list, positions.first, lists);
  }
  launch(begin_rows, {.name = "csr_rows", .grid = blocks_for(lists.rows + 1, 256)}, stream, lists);
  launch(cut_columns, {.name = "csr_columns", .grid = blocks_for(lists.count, 256)}, stream, lists);
  const SortedRows sorted = sort_rows(stream, args.column, lists.cols, memory);
  launch(list_columns,
         {.name = "csr_transpose", .grid = blocks_for(std::max(lists.count, lists.cols + 1), 256)},
         stream, lists, sorted);
}

}  // namespace espalier::kernels::ESPALIER_GPU
