// A block sums 128 columns over a part of the rows: 8 rows side by side, a quad of columns per
// lane.
#include "src/kernels/cuda/rowwise/combine.h"
#include "src/kernels/cuda/simt/reduce.h"
#include "src/kernels/cuda/table.h"

namespace espalier::kernels::ESPALIER_GPU {
namespace {

constexpr unsigned kSide = 8;
constexpr int kTogether = 4;  ///< rows that a thread loads before it uses the first
constexpr int64_t kTileColumns = 128;

struct Columns {
  Elements x;
  int64_t stride, rows, cols;
  float* shares;
  bool whole;  ///< all quads are aligned; rows consist of whole quads
};

/// Sum of a quad of columns over rows `row`, row + kSide, …, added in order.
template <bool kWhole>
__device__ __forceinline__ Quad sum_rows(const Columns& args, int64_t row, int64_t end,
                                         int64_t column) {
  const int64_t count = args.cols - column;
  Quad sum{};
  for (; row + (kTogether - 1) * kSide < end; row += kTogether * kSide) {
    RawQuad raw[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      raw[j] = load_raw<kWhole>(args.x, (row + j * kSide) * args.stride + column, count);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      add(sum, quad_of(args.x.type, raw[j]));
    }
  }
  for (; row < end; row += kSide) {
    add(sum, load_quad<kWhole>(args.x, row * args.stride + column, count));
  }
  return sum;
}

__global__ void __launch_bounds__(32 * kSide) column_shares(Columns args) {
  __shared__ float sums[kSide][kTileColumns];
  const int64_t cols = args.cols;
  const int64_t column = blockIdx.x * kTileColumns + 4 * threadIdx.x;
  const int64_t rows_each = (args.rows + gridDim.y - 1) / gridDim.y;
  const int64_t row = blockIdx.y * rows_each + threadIdx.y;
  const int64_t end = least(args.rows, (blockIdx.y + 1) * rows_each);
  const Quad sum = !args.whole     ? sum_rows<false>(args, row, end, column)
                   : column < cols ? sum_rows<true>(args, row, end, column)
                                   : Quad{};
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
    args.shares[blockIdx.y * cols + c] = total;
  }
}

/// A block has 32 columns. A warp first sums every 32nd part of each of them, then the 32 sums of
/// one column. The launch has few blocks; this keeps enough loads in flight.
__global__ void __launch_bounds__(1024) add_shares(CombineArgs args) {
  __shared__ float sums[32][33];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  const int64_t cols = args.cols * (args.more.data != nullptr ? 2 : 1);
  const int64_t first = int64_t{blockIdx.x} * 32;
  float sum = 0;
  if (first + lane < cols) {
    const float* share = args.shares + first + lane;
#pragma unroll 8
    for (int64_t part = warp; part < args.parts; part += 32) {
      sum += share[part * args.stride];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  const float total = warp_sum(sums[lane][warp]);
  const int64_t column = first + warp;
  if (lane == 0 && column < cols) {
    const bool more = column >= args.cols;
    const Elements out = more ? args.more : args.out;
    const int64_t c = column - (more ? args.cols : 0);
    store(out, c, (args.accumulate ? load(out, c) : 0.0F) + total);
  }
}

}  // namespace

void combine_shares(Stream& stream, const CombineArgs& args) {
  launch(add_shares,
         {.name = "combine_shares",
          .grid = blocks_for(args.cols * (args.more.data != nullptr ? 2 : 1), 32),
          .block = 1024},
         stream, args);
}

void column_sum(Stream& stream, const ColumnSumArgs& args) {
  const int64_t rows = args.x.rows();
  const int64_t cols = args.x.cols();
  const unsigned tiles = blocks_for(cols, kTileColumns);
  // Enough blocks for a large device, each with enough rows to justify the cost of its share.
  constexpr int64_t kBlocks = 1024;
  constexpr int64_t kMinRows = 64;
  const int64_t wanted = kBlocks / (tiles == 0 ? 1 : tiles);
  const int64_t useful = divide_up(rows, kMinRows);
  const int64_t parts = wanted < 1 || useful < 1 ? 1 : wanted < useful ? wanted : useful;
  auto* shares = reinterpret_cast<float*>(
      stream.workspace(static_cast<size_t>(parts * cols + 1) * sizeof(float)));
  const Elements x = elements(args.x);
  const bool whole = cols % 4 == 0 && has_whole_quads(x, args.x.stride);
  launch(column_shares,
         {.name = "column_sum",
          .grid = dim3(tiles, static_cast<unsigned>(parts)),
          .block = dim3(32, kSide)},
         stream, Columns{x, args.x.stride, rows, cols, shares, whole});
  combine_shares(stream, {shares, parts, cols, cols, elements(args.out), args.accumulate});
}

}  // namespace espalier::kernels::ESPALIER_GPU
