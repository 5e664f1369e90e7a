// A block sums 128 columns of a part of the rows: 8 rows side by side, a quad of columns a lane.
#include "src/kernels/cuda/combine.h"
#include "src/kernels/cuda/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kSide = 8;
constexpr int64_t kTileColumns = 128;

__global__ void __launch_bounds__(32 * kSide)
    column_shares(Elements x, int64_t stride, int64_t rows, int64_t cols, float* shares) {
  __shared__ float sums[kSide][kTileColumns];
  const int64_t column = blockIdx.x * kTileColumns + 4 * threadIdx.x;
  const int64_t rows_each = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t end = least(rows, (blockIdx.y + 1) * rows_each);
  Quad sum{};
#pragma unroll 4
  for (int64_t r = blockIdx.y * rows_each + threadIdx.y; r < end; r += kSide) {
    const Quad q = load_quad(x, r * stride + column, cols - column);
    for (int k = 0; k < 4; ++k) {
      sum.x[k] += q.x[k];
    }
  }
  for (int k = 0; k < 4; ++k) {
    sums[threadIdx.y][4 * threadIdx.x + k] = sum.x[k];
  }
  __syncthreads();
  const unsigned mine = threadIdx.y * 32 + threadIdx.x;
  const int64_t c = blockIdx.x * kTileColumns + mine;
  if (mine < kTileColumns && c < cols) {
    float total = 0;
    for (unsigned side = 0; side < kSide; ++side) {
      total += sums[side][mine];
    }
    shares[blockIdx.y * cols + c] = total;
  }
}

__global__ void __launch_bounds__(32 * kSide) add_shares(CombineArgs args) {
  __shared__ float sums[kSide][32];
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
#pragma unroll 4
  for (int64_t part = threadIdx.y; part < args.parts; part += kSide) {
    sum += c < args.cols ? args.shares[part * args.stride + c] : 0.0F;
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && c < args.cols) {
    float total = args.accumulate ? load(args.out, c) : 0.0F;
    for (unsigned side = 0; side < kSide; ++side) {
      total += sums[side][threadIdx.x];
    }
    store(args.out, c, total);
  }
}

}  // namespace

void combine_shares(Stream& stream, const CombineArgs& args) {
  launch(add_shares,
         {.name = "combine_shares", .grid = blocks_for(args.cols, 32), .block = dim3(32, kSide)},
         stream, args);
}

void column_sum(Stream& stream, const ColumnSumArgs& args) {
  verify(args);
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  const unsigned tiles = blocks_for(cols, kTileColumns);
  // Enough blocks for a large device, each with rows enough to be worth its share.
  constexpr int64_t kBlocks = 1024;
  constexpr int64_t kLeastRows = 64;
  const int64_t wanted = kBlocks / (tiles == 0 ? 1 : tiles);
  const int64_t useful = divide_up(rows, kLeastRows);
  const int64_t parts = wanted < 1 || useful < 1 ? 1 : wanted < useful ? wanted : useful;
  auto* shares = reinterpret_cast<float*>(
      stream.workspace(static_cast<size_t>(parts * cols + 1) * sizeof(float)));
  launch(column_shares,
         {.name = "column_sum",
          .grid = dim3(tiles, static_cast<unsigned>(parts)),
          .block = dim3(32, kSide)},
         stream, elements(args.x), args.x.stride, rows, cols, shares);
  combine_shares(stream, {shares, parts, cols, cols, elements(args.out), args.accumulate});
}

}  // namespace espalier::kernels::ESPALIER_GPU
