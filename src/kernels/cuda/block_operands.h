#pragma once
// What the tiles of block products read: how each thread copies its pieces of the next kDepth lines
// into a stage (block_tile.h). A piece is 16 bytes, eight neighbouring elements; what is beyond an
// edge is zero. Lines of the sum may be gathered: those of the kept blocks, side by side.
#include "src/kernels/cuda/block_tile.h"
#include "src/kernels/cuda/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Columns of a row of kept blocks, side by side (or rows of a column of them, one under the
/// other): where the k-th is in the matrix. Blocks have a multiple of 16, at most kMostExtent.
class Gather {
 public:
  static constexpr int64_t kMostExtent = 1024;
  Gather() = default;
  explicit Gather(int64_t extent)
      : extent_(static_cast<uint32_t>(extent)), inverse_(inverse_of(extent_ / 16)) {}

  /// Block of the k-th, and its place within; a product instead of a quotient: exact for k < 2^29,
  /// since inverse_ is less than 1 above 2^31 / (extent / 16), and that at most 64.
  __device__ __forceinline__ uint32_t block(uint32_t k) const {
    return __umulhi(k / 16 * 2, inverse_);
  }
  __device__ __forceinline__ uint32_t within(uint32_t k) const { return k - block(k) * extent_; }
  __device__ __forceinline__ int64_t place(const int32_t* blocks, uint32_t k) const {
    const uint32_t number = block(k);
    return int64_t{blocks[number]} * extent_ + (k - number * extent_);
  }

 private:
  static uint32_t inverse_of(uint32_t sixteens) { return ((1U << 31) + sixteens - 1) / sixteens; }
  uint32_t extent_ = 16, inverse_ = 1U << 31;
};

/// bf16 rows in global memory: the first is at `data`, `rows` of them exist, each with `columns`.
struct Rows {
  const uint16_t* data;
  int64_t stride, rows, columns;
};

/// Bytes of a piece that begins `left` elements before the edge.
__device__ __forceinline__ int piece_bytes(int64_t left) {
  return static_cast<int>(2 * most(0, least(8, left)));
}

/// kMany rows, whose columns are the lines of the sum; without `blocks` all of them, in order.
template <int kMany>
class AlongRows {
 public:
  using Tile = OperandTile<kMany, true>;

  /// `count`: of the sum.
  __device__ AlongRows(const Rows& rows, int count, const Gather& gather, const int32_t* blocks)
      : from_(rows.data + int64_t{line()} * rows.stride),
        step_(kApart * rows.stride),
        columns_(rows.columns),
        left_(static_cast<int>(least(kMany, rows.rows)) - line()),
        k_(8 * piece()),
        count_(count),
        gather_(gather),
        blocks_(blocks) {}

  __device__ __forceinline__ void load(std::byte* tile) {
    const auto k = static_cast<uint32_t>(k_);
    const int64_t column = k_ >= count_ ? 0 : blocks_ == nullptr ? k_ : gather_.place(blocks_, k);
    const int bytes = k_ >= count_ ? 0 : piece_bytes(columns_ - column);
    const uint16_t* from = from_ + (bytes > 0 ? column : 0);
#pragma unroll
    for (int i = 0; i < kMany; i += kApart) {
      copy_async(tile + Tile::offset(line() + i, piece()), from, i < left_ ? bytes : 0);
      from += step_;
    }
    k_ += kDepth;
  }

 private:
  static constexpr int kApart = kTileThreads / Tile::kPieces;  ///< rows between a thread's pieces
  static __device__ int line() { return static_cast<int>(threadIdx.x) / Tile::kPieces; }
  static __device__ int piece() { return static_cast<int>(threadIdx.x) % Tile::kPieces; }

  const uint16_t* from_;
  int64_t step_, columns_;
  int left_, k_, count_;
  Gather gather_;
  const int32_t* blocks_;
};

/// What the threads of tiles across the sum have in common: each has one piece of several lines.
template <int kMany>
struct AcrossLines {
  using Tile = OperandTile<kMany, false>;
  static constexpr int kApart = kTileThreads / Tile::kPieces;  ///< lines between a thread's pieces
  static __device__ int line() { return static_cast<int>(threadIdx.x) / Tile::kPieces; }
  /// The thread's first column.
  static __device__ int column() { return static_cast<int>(threadIdx.x) % Tile::kPieces * 8; }
  static __device__ int offset(int i) { return Tile::offset(line() + i, column() / 8); }
};

/// kMany columns, of which rows are the lines of the sum.
template <int kMany>
class AcrossRows {
 public:
  using Lines = AcrossLines<kMany>;
  using Tile = typename Lines::Tile;

  /// The thread's eight columns begin at `column` of the rows; none when that is beyond them.
  __device__ AcrossRows(const Rows& rows, int64_t column)
      : from_(rows.data + Lines::line() * rows.stride + (column < rows.columns ? column : 0)),
        step_(Lines::kApart * rows.stride),
        left_(rows.rows - Lines::line()),
        bytes_(piece_bytes(rows.columns - column)) {}

  __device__ __forceinline__ void load(std::byte* tile) {
#pragma unroll
    for (int i = 0; i < kDepth; i += Lines::kApart) {
      copy_async(tile + Lines::offset(i), from_, i < left_ ? bytes_ : 0);
      from_ += step_;
    }
    left_ -= kDepth;
  }

 private:
  const uint16_t* from_;
  int64_t step_, left_;
  int bytes_;
};

/// A block of a column of blocks: where its rows are in the values.
struct BlockPiece {
  int32_t first;   ///< its first element
  int32_t stride;  ///< elements from one of its rows to the next
};

/// kMany columns of a column of blocks, of which the rows of its kept blocks are the lines of the
/// sum.
template <int kMany>
class AcrossBlocks {
 public:
  using Lines = AcrossLines<kMany>;
  using Tile = typename Lines::Tile;

  struct Blocks {
    const uint16_t* values;
    const BlockPiece* pieces;
    const int32_t* rows;   ///< rows of blocks
    int64_t height, edge;  ///< rows of the matrix end at `edge`
    int count;             ///< lines of the sum
  };
  /// The columns begin at `first` of the blocks' and end at `columns`.
  __device__ AcrossBlocks(const Blocks& blocks, const Gather& gather, int first, int64_t columns)
      : blocks_(blocks),
        gather_(gather),
        k_(Lines::line()),
        column_(first + Lines::column()),
        bytes_(piece_bytes(columns - column_)) {}

  __device__ __forceinline__ void load(std::byte* tile) {
#pragma unroll
    for (int i = 0; i < kDepth; i += Lines::kApart) {
      const uint16_t* from = blocks_.values;
      int bytes = 0;
      if (k_ + i < blocks_.count && bytes_ > 0) {
        const auto k = static_cast<uint32_t>(k_ + i);
        const uint32_t block = gather_.block(k);
        const uint32_t row = gather_.within(k);
        if (blocks_.rows[block] * blocks_.height + row < blocks_.edge) {
          const BlockPiece at = blocks_.pieces[block];
          from += at.first + int64_t{row} * at.stride + column_;
          bytes = bytes_;
        }
      }
      copy_async(tile + Lines::offset(i), from, bytes);
    }
    k_ += kDepth;
  }

 private:
  Blocks blocks_;
  Gather gather_;
  int k_, column_, bytes_;
};

}  // namespace espalier::kernels::ESPALIER_GPU
