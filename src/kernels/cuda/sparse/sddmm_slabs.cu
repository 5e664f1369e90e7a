// The gradient of a sparse weight by dense products: a slab has as many whole rows of dyᵀ x, in
// fp32, as fit the workspace. A kernel then copies the kept elements. Cost: a dense product, at any
// density, plus 4 bytes written and read per element. sddmm.cu decides when to use it.
#include <algorithm>

#include "src/kernels/cuda/dense/blas.h"
#include "src/kernels/cuda/sparse/products.h"
#include "src/kernels/cuda/sparse/rows.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 8;

struct Slab {
  const float* sums;
  int64_t first, rows, cols;
};

/// A warp processes one row of the slab.
__global__ void __launch_bounds__(32 * kWarps)
    take_kept(SparseRows rows, Slab slab, Elements values, bool accumulate) {
  const int64_t n = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (n >= slab.rows) {
    return;
  }
  const SparseRow row = rows.row(slab.first + n);
  for (int64_t j = threadIdx.x % 32; j < row.count; j += 32) {
    const float before = accumulate ? load(values, row.value + j) : 0.0F;
    store(values, row.value + j, before + slab.sums[n * slab.cols + rows.column(row, j)]);
  }
}

size_t rounded_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

void sddmm_by_slabs(Stream& stream, const SddmmArgs& args, int64_t rows_each) {
  const SparseMatrix& weight = args.weight;
  const int64_t tokens = args.x.rows();
  const int64_t most = std::min(rows_each, weight.rows);
  // The products' own workspace is at the start: they request it again and get the same memory.
  const size_t products = rounded_up(matmul_workspace(most, weight.cols));
  const size_t lists = rounded_up(rows_bytes(weight));
  std::byte* const memory =
      stream.workspace(products + lists + static_cast<size_t>(most * weight.cols) * sizeof(float));
  const SparseRows rows = rows_of(stream, weight, memory + products);
  auto* const sums = reinterpret_cast<float*>(memory + products + lists);
  for (int64_t first = 0; first < weight.rows; first += most) {
    const int64_t count = std::min(most, weight.rows - first);
    matmul(stream, {.a = args.dy.column_range(first, count).data,
                    .b = args.x.data,
                    .c = sums,
                    .m = count,
                    .n = weight.cols,
                    .k = tokens,
                    .a_stride = args.dy.stride,
                    .b_stride = args.x.stride,
                    .c_stride = weight.cols,
                    .half_inputs = args.x.dtype != DType::fp32,
                    .half = args.x.dtype == DType::fp16 ? DType::fp16 : DType::bf16,
                    .tf32 = stream.tf32() && args.x.dtype == DType::fp32,
                    .transpose_a = true});
    launch(take_kept,
           {.name = "sddmm_take", .grid = blocks_for(count, kWarps), .block = 32 * kWarps}, stream,
           rows, Slab{sums, first, count, weight.cols}, elements(weight.values), args.accumulate);
  }
}

}  // namespace espalier::kernels::ESPALIER_GPU
