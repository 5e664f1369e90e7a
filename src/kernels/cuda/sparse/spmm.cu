// Sparse products of any weight, of single elements or of blocks, without a library. They serve
// wherever no faster implementation applies.
//   spmm             a warp has a row of W and four tokens; its lanes have the row's elements
//   spmm_transposed  a warp has a token and a tile of the columns, and adds the rows of W in order
#include "src/kernels/cuda/block/products.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/sparse/by_library.h"
#include "src/kernels/cuda/sparse/rows.h"
#include "src/kernels/cuda/sparse/spmm_output.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kWarps = 8;
constexpr int kTokens = 4;
constexpr int64_t kTile = 2048;

struct Forward {
  Elements values, x;
  int64_t tokens, x_stride;
  SpmmOutput output;
};

/// Returns the sum over the warp of sums[lane / 8]. At each exchange a lane halves the number of
/// sums it still adds, so four sums take six shuffles.
__device__ __forceinline__ float sum_of_four(const float (&sums)[kTokens]) {
  static_assert(kTokens == 4);
  const bool high = (threadIdx.x & 16U) != 0;
  float two[2];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const float other = __shfl_xor_sync(kAllLanes, high ? sums[t] : sums[2 + t], 16);
    two[t] = (high ? sums[2 + t] : sums[t]) + other;
  }
  const bool second = (threadIdx.x & 8U) != 0;
  float one = second ? two[1] : two[0];
  one += __shfl_xor_sync(kAllLanes, second ? two[0] : two[1], 8);
#pragma unroll
  for (int lanes = 4; lanes > 0; lanes /= 2) {
    one += __shfl_xor_sync(kAllLanes, one, lanes);
  }
  return one;
}

template <class Rows>
__global__ void __launch_bounds__(32 * kWarps) multiply(Rows rows, Forward args) {
  const int64_t n = int64_t{blockIdx.y} * kWarps + threadIdx.x / 32;
  const int64_t token = int64_t{blockIdx.x} * kTokens;
  const int64_t lane = threadIdx.x % 32;
  if (n >= rows.rows) {
    return;
  }
  const SparseRow row = rows.row(n);
  float sums[kTokens] = {};
  for (int64_t j = lane; j < row.count; j += 32) {
    const float value = load(args.values, row.value + j);
    const int64_t column = rows.column(row, j);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (token + t < args.tokens) {
        sums[t] += value * load(args.x, (token + t) * args.x_stride + column);
      }
    }
  }
  const float sum = sum_of_four(sums);
  const int64_t mine = token + lane / 8;
  if (lane % 8 == 0 && mine < args.tokens) {
    args.output.take(mine, n, sum);
  }
}

struct Backward {
  Elements values, dy;
  int64_t cols, dy_stride;
  SpmmTransposedOutput output;
};

template <class Rows>
__global__ void __launch_bounds__(32) multiply_transposed(Rows rows, Backward args) {
  __shared__ float sums[kTile];
  const int64_t token = blockIdx.x;
  const int64_t first = int64_t{blockIdx.y} * kTile;
  const int64_t width = least(kTile, args.cols - first);
  const int64_t lane = threadIdx.x;
  for (int64_t c = lane; c < width; c += 32) {
    sums[c] = 0;
  }
  __syncwarp();
  for (int64_t n = 0; n < rows.rows; ++n) {
    const SparseRow row = rows.row(n);
    const float dy = load(args.dy, token * args.dy_stride + n);
    for (int64_t j = lane; j < row.count; j += 32) {
      const int64_t c = rows.column(row, j) - first;
      if (c >= 0 && c < width) {
        sums[c] += dy * load(args.values, row.value + j);
      }
    }
    __syncwarp();  // the next row may have the same columns in other lanes
  }
  for (int64_t c = lane; c < width; c += 32) {
    args.output.take(token, first + c, sums[c]);
  }
}

template <class Args>
void run(Stream& stream, const char* name, const Args& args) {
  const auto rows = rows_of(stream, args.weight, stream.workspace(rows_bytes(args.weight)));
  const Forward forward{.values = elements(args.weight.values),
                        .x = elements(args.x),
                        .tokens = args.x.rows(),
                        .x_stride = args.x.stride,
                        .output = output_of(args)};
  const Launch shape{
      .name = name,
      .grid = dim3(blocks_for(forward.tokens, kTokens), blocks_for(args.weight.rows, kWarps)),
      .block = 32 * kWarps};
  launch(multiply<std::remove_const_t<decltype(rows)>>, shape, stream, rows, forward);
}

template <class Args>
void run_transposed(Stream& stream, const char* name, const Args& args) {
  const auto rows = rows_of(stream, args.weight, stream.workspace(rows_bytes(args.weight)));
  const Backward backward{.values = elements(args.weight.values),
                          .dy = elements(args.dy),
                          .cols = args.weight.cols,
                          .dy_stride = args.dy.stride,
                          .output = output_of(args)};
  const Launch shape{
      .name = name,
      .grid = dim3(blocks_for(args.dy.rows(), 1), blocks_for(args.weight.cols, kTile)),
      .block = 32};
  launch(multiply_transposed<std::remove_const_t<decltype(rows)>>, shape, stream, rows, backward);
}

}  // namespace

void spmm(Stream& stream, const SpmmArgs& args) {
  if (!by_library(stream, args)) {
    run(stream, "spmm", args);
  }
}
void block_spmm_by_rows(Stream& stream, const BlockSpmmArgs& args) {
  run(stream, "block_spmm_by_rows", args);
}
void spmm_transposed(Stream& stream, const SpmmTransposedArgs& args) {
  if (!by_library(stream, args)) {
    run_transposed(stream, "spmm_transposed", args);
  }
}
void block_spmm_transposed_by_rows(Stream& stream, const BlockSpmmTransposedArgs& args) {
  run_transposed(stream, "block_spmm_transposed_by_rows", args);
}

}  // namespace espalier::kernels::ESPALIER_GPU
