#pragma once
// A tile of a dense product on tensor cores, the unit of block products. Four warps hold kM x kN
// sums in registers. Four stages of shared memory load kDepth lines of both operands at a time:
// three stages are being filled while one is multiplied.
//
// Operands have the same order in shared as in global memory: along the sum ([outputs][kDepth]) or
// across it ([kDepth][outputs]); ldmatrix transposes them. The 16-byte pieces of a line are
// permuted so that the same piece of eight neighbouring lines lies in different banks. So neither
// copies nor ldmatrix have bank conflicts.
//
// An element of the left operand is used kN times, one of the right kM times. Bytes per flop:
//   into shared memory, from L2   1/kM + 1/kN           256 x 64: 0.0195     128 x 128: 0.0156
//   out of it                     1/kWarpM + 1/kWarpN   of 64 x 64: 0.0313
// Limits of an H100:
// - Data sheet: 989e12 flops a second in bf16 (with wgmma).
// - Shared memory moves 128 bytes a clock in each of 132 SMs, 29.7e12 a second at 1.755 GHz. That
//   feeds 59 % of those flops with tiles of 256 x 64, 64 % with 128 x 128.
// - Registers: 128 for sums, 228 to 238 in all, none spilled, with two blocks of threads an SM (8
//   warps). Larger tiles of a warp would need more registers than exist.
// - The two blocks use 2 x 80 KiB of shared memory.
#include "src/kernels/cuda/simt/mma.h"

namespace espalier::kernels::ESPALIER_GPU {

inline constexpr int kTileThreads = 128;
inline constexpr int kDepth = 32;
inline constexpr int kStages = 4;

/// A tile of kM x kN sums. A warp computes kWarpM x kWarpN of them. At least kResident such blocks
/// of threads fit an SM.
template <int kRows, int kColumns, int kRowsOfWarp, int kColumnsOfWarp, int kBlocksOfSm>
struct TileShape {
  static constexpr int kM = kRows, kN = kColumns;
  static constexpr int kWarpM = kRowsOfWarp, kWarpN = kColumnsOfWarp;
  static constexpr int kResident = kBlocksOfSm;
  static constexpr int kStageBytes = (kM + kN) * kDepth * 2;
  /// Row stride of the finished sums in shared memory: 8 padding elements avoid bank conflicts.
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
// For products too small to occupy all SMs with the tiles above.
using SmallTile64 = TileShape<64, 64, 32, 32, 4>;
using SmallTile32 = TileShape<64, 32, 32, 16, 4>;

/// SMs times two: with fewer tiles some SMs idle. It is a constant, because the choice of the tile
/// must depend on shapes alone.
inline constexpr int64_t kManyTiles = 264;

/// Number of tiles of `each` that cover `extent`.
__device__ __host__ constexpr int tiles_across(int extent, int each) {
  return (extent + each - 1) / each;
}

/// Layout of one operand in a stage: kMany outputs by kDepth lines of the sum.
template <int kMany, bool kIsAlong>
struct OperandTile {
  static constexpr bool kAlong = kIsAlong;
  static constexpr int kLines = kAlong ? kMany : kDepth;
  static constexpr int kPieces = (kAlong ? kDepth : kMany) / 8;  ///< pieces of a line
  static constexpr int kBytes = kMany * kDepth * 2;
  static_assert(kPieces == 4 || kPieces % 8 == 0);

  static __device__ __forceinline__ int offset(int line, int piece) {
    const int turn = kPieces == 4 ? line / 2 % 4 : line % 8;
    return (line * kPieces + (piece ^ turn)) * 16;
  }

  /// Loads 16 outputs from `first` and 16 lines of the sum from `k`: one fragment a if this is the
  /// left operand, else two fragments b.
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

/// Position of a tile in the result, and the extent of the result from there on.
struct ResultPart {
  int64_t row, column, rows, columns;
};

/// Returns the sums over `steps` times kDepth lines, in shared memory: [kM][kSumStride]. Sums of
/// warps beyond the result are zero. `left` and `right` have `Tile`, an OperandTile, and
/// load(tile), which starts the copies of the next kDepth lines.
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
    __syncthreads();  // all copies of this step have arrived; the stage before it is free
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
