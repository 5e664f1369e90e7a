#pragma once
// Building blocks of the attention kernels by tiles. A tile is some rows of q, k, v or dout of one
// head in shared memory, with kD columns of 16-bit elements. Columns beyond the head's width and
// rows beyond the last are zero. A warp multiplies its own 16 kM rows, the left operand, by tiles
// of the other side. Its sums [kM][n][4] are, for each eight columns n, fragments c of mma.h.
#include <algorithm>

#include "src/kernels/cuda/attention/attention.h"
#include "src/kernels/cuda/simt/mma.h"
#include "src/kernels/cuda/simt/reduce.h"

namespace espalier::kernels::ESPALIER_GPU {

inline constexpr int kAttentionThreads = 128;

/// Keys that a query sees: all; those up to its own (causal); of these the last `window`.
enum class AttentionMask { all, causal, window };
inline AttentionMask mask_of(const AttentionShapes& s) {
  return !s.causal      ? AttentionMask::all
         : s.window > 0 ? AttentionMask::window
                        : AttentionMask::causal;
}
/// The window in rows; one of more than all tokens hides nothing.
__device__ __forceinline__ int window_rows(const AttentionShapes& s) {
  return static_cast<int>(least(s.window, s.tokens));
}

/// Chunks are 16 bytes. The chunks of a row are permuted so that the eight rows of one ldmatrix
/// matrix lie in different banks. The permutation repeats every eighth row, 8 kD elements on.
template <int kD>
struct Tile {
  static constexpr int kChunks = kD / 8;
  static_assert(kChunks % 4 == 0);
  static constexpr __host__ __device__ int place(int row, int chunk) {
    return row * kChunks + (chunk ^ (kChunks % 8 == 0 ? row & 7 : row >> 1 & 3));
  }
  static __device__ __forceinline__ uint16_t* at(uint16_t* tile, int row, int chunk) {
    return tile + 8 * place(row, chunk);
  }
};

/// Rows of one head in an operand: row i begins at first + i stride.
struct HeadRows {
  uint16_t* first;
  int stride, count, chunks;
  __device__ uint16_t* at(int row, int chunk) const {
    return first + int64_t{row} * stride + 8 * chunk;
  }
  __device__ bool has(int row, int chunk) const { return row < count && chunk < chunks; }
};

__device__ __forceinline__ HeadRows part_rows(const AttentionShapes& s, const Elements& qkv,
                                              const AttentionPair& pair, int part) {
  return {static_cast<uint16_t*>(qkv.data) + s.part(pair, 0, part),
          static_cast<int>(s.qkv_columns()), static_cast<int>(s.tokens),
          static_cast<int>(s.width / 8)};
}
__device__ __forceinline__ HeadRows output_rows(const AttentionShapes& s, const Elements& out,
                                                const AttentionPair& pair) {
  return {static_cast<uint16_t*>(out.data) + s.output(pair, 0), static_cast<int>(s.columns()),
          static_cast<int>(s.tokens), static_cast<int>(s.width / 8)};
}

/// Starts asynchronous copies of rows `row` to row + kRows - 1; the block waits with wait_copies. A
/// thread copies one chunk of every kAtOnce-th row, at the same place of its row each time.
template <int kD, int kRows>
__device__ __forceinline__ void load_tile(uint16_t* tile, const HeadRows& from, int row) {
  constexpr int kAtOnce = kAttentionThreads / Tile<kD>::kChunks / 8 * 8;
  static_assert(kRows % kAtOnce == 0);
  const int own = static_cast<int>(threadIdx.x) / Tile<kD>::kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % Tile<kD>::kChunks;
  if (own < kAtOnce) {
    const uint16_t* source = from.at(row + own, chunk);
    uint16_t* const to = Tile<kD>::at(tile, own, chunk);
    const int rows = chunk < from.chunks ? from.count - row - own : 0;
#pragma unroll
    for (int r = 0; r < kRows; r += kAtOnce) {
      copy_async(to + r * kD, source, r < rows ? 16 : 0);
      source += kAtOnce * from.stride;
    }
  }
}

/// The left operand of a product: rows `row` to row + 16 kM - 1 of a tile. With kHeld the rows stay
/// in registers; otherwise each product reads them.
template <int kD, int kM, bool kHeld>
class Left {
 public:
  __device__ Left(uint16_t* tile, int row) : tile_(tile), row_(row) {
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kD / 16; ++step) {
        read(step, held_[step]);
      }
    }
  }
  /// Returns columns 16 step to 16 step + 15.
  __device__ __forceinline__ void get(int step, uint32_t (&a)[kM][4]) const {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < 4 * kM; ++i) {
        a[i / 4][i % 4] = held_[step][i / 4][i % 4];
      }
    } else {
      read(step, a);
    }
  }

 private:
  __device__ __forceinline__ void read(int step, uint32_t (&a)[kM][4]) const {
    const MatrixRow at = down_first(threadIdx.x % 32);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      load_matrices(a[m],
                    Tile<kD>::at(tile_, row_ + at.row, 2 * step + at.column / 8) + 16 * m * kD);
    }
  }

  uint16_t* tile_;
  int row_;
  uint32_t held_[kHeld ? kD / 16 : 1][kM][4];
};

/// sums = x yᵀ; y is 8 kN rows of a tile, starting at `row`.
template <DType kHalf, int kD, int kM, int kN, bool kHeld>
__device__ __forceinline__ void multiply_rows(float (&sums)[kM][kN][4],
                                              const Left<kD, kM, kHeld>& x, uint16_t* y, int row) {
  const MatrixRow at = across_first(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 4 * kM * kN; ++i) {
    sums[i / (4 * kN)][i / 4 % kN][i % 4] = 0;
  }
#pragma unroll
  for (int step = 0; step < kD / 16; ++step) {
    uint32_t a[kM][4];
    x.get(step, a);
    const uint16_t* const from = Tile<kD>::at(y, row + at.row, 2 * step + at.column / 8);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t b[4];
      load_matrices(b, from + 8 * n * kD);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<kHalf>(sums[m][n], a[m], {b[0], b[1]});
        multiply_add<kHalf>(sums[m][n + 1], a[m], {b[2], b[3]});
      }
    }
  }
}

/// sums += p y; p is packed by `pack`; y is 16 kSteps rows of a tile, starting at `row`.
template <DType kHalf, int kD, int kM, int kSteps>
__device__ __forceinline__ void add_product(float (&sums)[kM][kD / 8][4],
                                            const uint32_t (&p)[kM][kSteps][4], uint16_t* y,
                                            int row) {
  const MatrixRow at = down_first(threadIdx.x % 32);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int n = 0; n < kD / 8; n += 2) {
      uint32_t b[4];
      load_matrices_transposed(b,
                               Tile<kD>::at(y, row + at.row, n + at.column / 8) + 16 * step * kD);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<kHalf>(sums[m][n], p[m][step], {b[0], b[1]});
        multiply_add<kHalf>(sums[m][n + 1], p[m][step], {b[2], b[3]});
      }
    }
  }
}

/// Converts the sums of one product to the left operand of the next, whose inner extent is their
/// columns. No exchange between lanes is needed.
template <DType kHalf, int kM, int kN>
__device__ __forceinline__ void pack(const float (&sums)[kM][kN][4], uint32_t (&p)[kM][kN / 2][4]) {
#pragma unroll
  for (int i = 0; i < 2 * kM * kN; ++i) {
    const float(&pair)[4] = sums[i / (2 * kN)][i / 2 % kN];
    p[i / (2 * kN)][i / 4 % (kN / 2)][i % 4] =
        pack_halves<kHalf>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
  }
}

/// Calls body(sum, row, column) for all sums of a lane; rows and columns count from the warp's
/// first.
template <int kM, int kN, class Body>
__device__ __forceinline__ void for_sums(float (&sums)[kM][kN][4], const Body& body) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4 * kM * kN; ++i) {
    const int m = i / (4 * kN);
    const int n = i / 4 % kN;
    body(sums[m][n][i % 4], 16 * m + lane / 4 + i % 4 / 2 * 8, 8 * n + lane % 4 * 2 + i % 2);
  }
}

/// Multiplies each row of sums by its factor: factor[m][h] belongs to the lane's row 16 m + lane /
/// 4 + 8 h.
template <int kM, int kN>
__device__ __forceinline__ void scale_rows(float (&sums)[kM][kN][4], const float (&factor)[kM][2]) {
#pragma unroll
  for (int i = 0; i < 4 * kM * kN; ++i) {
    sums[i / (4 * kN)][i / 4 % kN][i % 4] *= factor[i / (4 * kN)][i % 4 / 2];
  }
}

/// Writes a warp's sums to rows `row` and on of `to`. They pass through rows `own` and on of a
/// tile; no other warp reads those rows.
template <DType kHalf, int kD, int kM>
__device__ __forceinline__ void store_rows(const float (&sums)[kM][kD / 8][4], uint16_t* tile,
                                           int own, const HeadRows& to, int row) {
  constexpr int kChunks = Tile<kD>::kChunks;
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2 * kM * kChunks; ++i) {
    const int m = i / (2 * kChunks);
    const int n = i / 2 % kChunks;
    const float(&from)[4] = sums[m][n];
    uint16_t* at = Tile<kD>::at(tile, own + 16 * m + lane / 4 + i % 2 * 8, n) + lane % 4 * 2;
    *reinterpret_cast<uint32_t*>(at) = pack_halves<kHalf>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * kM * kChunks; i += 32) {
    if (to.has(row + i / kChunks, i % kChunks)) {
      *reinterpret_cast<uint4*>(to.at(row + i / kChunks, i % kChunks)) =
          *reinterpret_cast<const uint4*>(Tile<kD>::at(tile, own + i / kChunks, i % kChunks));
    }
  }
}

inline constexpr float kLog2E = 1.4426950408889634F;

/// Maps a block to its pair and tile. Blocks start in the order of their numbers. `together` pairs
/// run at a time, so that their rows stay in the L2 cache; within them the tiles with most work
/// start first (rank 0).
struct AttentionTurn {
  unsigned pair, rank;
};
struct AttentionOrder {
  unsigned tiles, pairs, together;
  __host__ __device__ AttentionTurn turn(unsigned block) const {
    const unsigned first = block / (together * tiles) * together;
    const unsigned within = block % (together * tiles);
    const unsigned here = together < pairs - first ? together : pairs - first;
    return {first + within % here, within / here};
  }
};

/// Order for tiles of `rows_of_tile` rows of `pairs` heads. All blocks of a pair read two of its
/// parts. `together` pairs have 16 MiB of them, less than half of the L2 cache of an A100.
inline AttentionOrder attention_order(const AttentionShapes& s, int64_t pairs, int rows_of_tile) {
  constexpr int64_t kInCache = 16 << 20;
  const int64_t bytes = 2 * s.tokens * s.width * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t together = std::max<int64_t>(1, kInCache / std::max<int64_t>(1, bytes));
  return {blocks_for(s.tokens, rows_of_tile), blocks_for(pairs, 1),
          static_cast<unsigned>(together)};
}

}  // namespace espalier::kernels::ESPALIER_GPU
