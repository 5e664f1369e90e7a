#pragma once
// A tile of a dense product on tensor cores, of which block products are made: kM x kN sums in the
// registers of four warps, over lines of both operands that four stages of shared memory bring in,
// kDepth at a time. Three stages are under way while one is multiplied.
//
// Operands lie in shared memory as global memory has them, either along the sum ([outputs][kDepth])
// or across it ([kDepth][outputs]); ldmatrix turns them. A line's pieces of 16 bytes are permuted,
// so that the same piece of eight neighbouring lines lies in different banks: neither copies nor
// ldmatrix wait for each other.
//
// An element of the left operand is used kN times, one of the right kM times. Bytes a flop:
//   into shared memory, from L2   1/kM + 1/kN           256 x 64: 0.0195     128 x 128: 0.0156
//   out of it                     1/kWarpM + 1/kWarpN   of 64 x 64: 0.0313
// By its data sheet an H100 does 989e12 flops a second in bf16 (with wgmma). Its shared memory
// moves 128 bytes a clock in each of 132 SMs, 29.7e12 a second at 1.755 GHz: enough for 59 % of
// those flops with tiles of 256 x 64, for 64 % with 128 x 128. Larger parts for a warp would need
// more registers than there are: 128 for sums, 228 to 238 in all, none spilled, for two blocks of
// threads an SM, 8 warps. The same two have 2 x 80 KiB of shared memory.
#include "src/kernels/cuda/simt/mma.h"

namespace espalier::kernels::ESPALIER_GPU {

inline constexpr int kTileThreads = 128;
inline constexpr int kDepth = 32;
inline constexpr int kStages = 4;

/// kM x kN sums, of which a warp has kWarpM x kWarpN; at least kResident such blocks of threads fit
/// an SM.
template <int kRows, int kColumns, int kRowsOfWarp, int kColumnsOfWarp, int kBlocksOfSm>
struct TileShape {
  static constexpr int kM = kRows, kN = kColumns;
  static constexpr int kWarpM = kRowsOfWarp, kWarpN = kColumnsOfWarp;
  static constexpr int kResident = kBlocksOfSm;
  static constexpr int kStageBytes = (kM + kN) * kDepth * 2;
  /// Of the sums, row by row, when they are done: 8 more in each, for the banks' sake.
  static constexpr int kSumStride = kN + 8;
  static constexpr int kSumBytes = kM * kSumStride * 4;
  static constexpr int kSharedBytes =
      kStages * kStageBytes > kSumBytes ? kStages* kStageBytes : kSumBytes;
  static_assert(kM / kWarpM * (kN / kWarpN) == kTileThreads / 32);

  static __device__ int first_row() {
    return static_cast<int>(threadIdx.x) / 32 / (kN / kWarpN) * kWarpM;
  }
  static __device__ int first_column() {
    return static_cast<int>(threadIdx.x) / 32 % (kN / kWarpN) * kWarpN;
  }
};

using WideTile = TileShape<128, 128, 64, 64, 2>;
using TallTile64 = TileShape<256, 64, 64, 64, 2>;
using TallTile32 = TileShape<256, 32, 64, 32, 2>;
using FlatTile64 = TileShape<64, 256, 64, 64, 2>;
using FlatTile32 = TileShape<32, 256, 32, 64, 2>;
// For products so small that those would leave SMs idle.
using SmallTile64 = TileShape<64, 64, 32, 32, 4>;
using SmallTile32 = TileShape<64, 32, 32, 16, 4>;

/// SMs times two: fewer tiles than this leave some idle. A constant, since what is chosen by it
/// must depend on shapes alone.
inline constexpr int64_t kManyTiles = 264;

/// Pieces of `each` that cover `extent`.
__device__ __host__ constexpr int tiles_across(int extent, int each) {
  return (extent + each - 1) / each;
}

/// kMany outputs by kDepth of the sum, as one stage has them.
template <int kMany, bool kIsAlong>
struct OperandTile {
  static constexpr bool kAlong = kIsAlong;
  static constexpr int kLines = kAlong ? kMany : kDepth;
  static constexpr int kPieces = (kAlong ? kDepth : kMany) / 8;  ///< of a line
  static constexpr int kBytes = kMany * kDepth * 2;
  static_assert(kPieces == 4 || kPieces % 8 == 0);

  static __device__ __forceinline__ int offset(int line, int piece) {
    const int turn = kPieces == 4 ? line / 2 % 4 : line % 8;
    return (line * kPieces + (piece ^ turn)) * 16;
  }

  /// 16 outputs from `first` and 16 of the sum from `k`: an a where this is the left operand, else
  /// two b.
  template <bool kLeft>
  static __device__ __forceinline__ void load(uint32_t (&r)[4], const std::byte* tile, int first,
                                              int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const MatrixRow at = kAlong == kLeft ? down_first(lane) : across_first(lane);
    if constexpr (kAlong) {
      load_matrices(r, tile + offset(first + at.row, (k + at.column) / 8));
    } else {
      load_matrices_transposed(r, tile + offset(k + at.row, (first + at.column) / 8));
    }
  }
};

template <class Shape>
struct TileSums {
  float at[Shape::kWarpM / 16][Shape::kWarpN / 8][4];
};

template <DType kHalf, class Shape, class Left, class Right>
__device__ __forceinline__ void multiply_stage(const std::byte* stage, TileSums<Shape>& sums) {
  const std::byte* const right = stage + Left::kBytes;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t a[Shape::kWarpM / 16][4];
#pragma unroll
    for (int i = 0; i < Shape::kWarpM / 16; ++i) {
      Left::template load<true>(a[i], stage, Shape::first_row() + 16 * i, k);
    }
#pragma unroll
    for (int j = 0; j < Shape::kWarpN / 16; ++j) {
      uint32_t b[4];
      Right::template load<false>(b, right, Shape::first_column() + 16 * j, k);
#pragma unroll
      for (int i = 0; i < Shape::kWarpM / 16; ++i) {
        multiply_add<kHalf>(sums.at[i][2 * j], a[i], {b[0], b[1]});
        multiply_add<kHalf>(sums.at[i][2 * j + 1], a[i], {b[2], b[3]});
      }
    }
  }
}

/// Where a tile is in the result, and how much of that there is from there on.
struct ResultPart {
  int64_t row, column, rows, columns;
};

/// The sums of `steps` times kDepth lines, in shared memory: [kM][kSumStride]; those of warps that
/// are beyond the result are zero. `left` and `right` have `Tile`, an OperandTile, and load(tile),
/// which asks for copies of the next kDepth lines.
template <DType kHalf, class Shape, class Left, class Right>
__device__ __forceinline__ const float* multiply_tile(Left& left, Right& right, int steps,
                                                      const ResultPart& part) {
  using LeftTile = typename Left::Tile;
  auto* const memory = dynamic_shared<std::byte>();
  const auto fill = [&](int step) {
    if (step < steps) {
      std::byte* const stage = memory + step % kStages * Shape::kStageBytes;
      left.load(stage);
      right.load(stage + LeftTile::kBytes);
    }
    commit_copies();
  };
  for (int step = 0; step < kStages - 1; ++step) {
    fill(step);
  }
  const bool used = Shape::first_row() < part.rows && Shape::first_column() < part.columns;
  TileSums<Shape> sums{};
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();  // all copies of this step are there, and the stage before it is free
    fill(step + kStages - 1);
    if (used) {
      multiply_stage<kHalf, Shape, LeftTile, typename Right::Tile>(
          memory + step % kStages * Shape::kStageBytes, sums);
    }
  }
  __syncthreads();
  auto* const done = reinterpret_cast<float*>(memory);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < Shape::kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kWarpN / 8; ++j) {
      const int row = Shape::first_row() + 16 * i + lane / 4;
      float* const at =
          done + row * Shape::kSumStride + Shape::first_column() + 8 * j + lane % 4 * 2;
      const float(&c)[4] = sums.at[i][j];
      *reinterpret_cast<float2*>(at) = float2{c[0], c[1]};
      *reinterpret_cast<float2*>(at + 8 * Shape::kSumStride) = float2{c[2], c[3]};
    }
  }
  __syncthreads();
  return done;
}

}  // namespace espalier::kernels::ESPALIER_GPU
