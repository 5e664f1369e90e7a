#pragma once
// Operand loaders of the block-product tiles: each thread copies its pieces of the next kDepth
// lines into a stage (tile.h).
//
// A piece is 16 bytes, eight neighbouring elements. It is copied whole, or it is zero, because
// copies of known sizes are one instruction. So lines of the sum must end with a whole piece
// (products.h); otherwise elements beyond them would be added. Outputs need not: elements beyond an
// edge are not stored. Lines of the sum may be gathered: the lines of the kept blocks, side by
// side.
#include "src/kernels/cuda/block/tile.h"
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Maps the k-th column of a row of kept blocks, side by side, to its place in the matrix (or the
/// k-th row of a column of kept blocks, one under the other). The extent of a block is a multiple
/// of 16, at most kMaxExtent.
class Gather {
 public:
  static constexpr int64_t kMaxExtent = 1024;
  Gather() = default;
  explicit Gather(int64_t extent)
      : extent_(static_cast<uint32_t>(extent)), inverse_(inverse_of(extent_ / 16)) {}

  /// Returns the block that holds the k-th line; `within` returns its place in that block. A
  /// product replaces the quotient. It is exact for k < 2^29, since inverse_ is less than 1 above
  /// 2^31 / (extent / 16), and extent / 16 is at most 64.
  __device__ __forceinline__ uint32_t block(uint32_t k) const {
    return __umulhi(k / 16 * 2, inverse_);
  }
  __device__ __forceinline__ uint32_t extent() const { return extent_; }
  __device__ __forceinline__ uint32_t within(uint32_t k) const { return k - block(k) * extent_; }
  __device__ __forceinline__ int64_t place(const int32_t* blocks, uint32_t k) const {
    const uint32_t number = block(k);
    return int64_t{blocks[number]} * extent_ + (k - number * extent_);
  }

 private:
  static uint32_t inverse_of(uint32_t sixteens) { return ((1U << 31) + sixteens - 1) / sixteens; }
  uint32_t extent_ = 16, inverse_ = 1U << 31;
};

/// Rows of 16-bit elements in global memory: `rows` rows of `columns` elements, starting at `data`.
struct Rows {
  const uint16_t* data;
  int64_t stride, rows, columns;
};

constexpr int kPieceBytes = 16;

/// kMany rows whose columns are the lines of the sum. Without `blocks`: all columns, in order.
template <int kMany>
class AlongRows {
 public:
  using Tile = OperandTile<kMany, true>;

  /// `count`: lines of the sum.
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
    const int64_t column = k_ >= count_         ? columns_
                           : blocks_ == nullptr ? k_
                                                : gather_.place(blocks_, k);
    const int rows = column < columns_ ? left_ : 0;
    const uint16_t* from = from_ + (column < columns_ ? column : 0);
    static_assert(kApart % 8 == 0);  // lines 8 apart have the same permutation (OperandTile)
    std::byte* const to = tile + Tile::offset(line(), piece());
#pragma unroll
    for (int i = 0; i < kMany; i += kApart) {
      copy_async(to + i * Tile::kPieces * kPieceBytes, from, i < rows ? kPieceBytes : 0);
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

/// Thread layout of tiles across the sum: each thread copies one piece of several lines.
template <int kMany>
struct AcrossLines {
  using Tile = OperandTile<kMany, false>;
  static constexpr int kApart = kTileThreads / Tile::kPieces;  ///< lines between a thread's pieces
  static __device__ int line() { return static_cast<int>(threadIdx.x) / Tile::kPieces; }
  /// The thread's first column.
  static __device__ int column() { return static_cast<int>(threadIdx.x) % Tile::kPieces * 8; }
  static __device__ int offset(int i) { return Tile::offset(line() + i, column() / 8); }
};

/// kMany columns whose rows are the lines of the sum.
template <int kMany>
class AcrossRows {
 public:
  using Lines = AcrossLines<kMany>;
  using Tile = typename Lines::Tile;

  /// The thread's eight columns begin at `column`; they are zero if `column` is beyond the rows.
  __device__ AcrossRows(const Rows& rows, int64_t column)
      : from_(rows.data + Lines::line() * rows.stride + (column < rows.columns ? column : 0)),
        step_(Lines::kApart * rows.stride),
        left_(column < rows.columns ? static_cast<int>(rows.rows - Lines::line()) : 0) {}

  __device__ __forceinline__ void load(std::byte* tile) {
#pragma unroll
    for (int i = 0; i < kDepth; i += Lines::kApart) {
      copy_async(tile + Lines::offset(i), from_, i < left_ ? kPieceBytes : 0);
      from_ += step_;
    }
    left_ -= kDepth;
  }

 private:
  const uint16_t* from_;
  int64_t step_;
  int left_;
};

/// Location, in the values, of the rows of one block in a column of blocks.
struct BlockPiece {
  int32_t first;   ///< its first element
  int32_t stride;  ///< elements from one of its rows to the next
};

/// kMany columns of a column of blocks; the rows of its kept blocks are the lines of the sum.
template <int kMany>
class AcrossBlocks {
 public:
  using Lines = AcrossLines<kMany>;
  using Tile = typename Lines::Tile;

  struct Blocks {
    const uint16_t* values;
    const BlockPiece* pieces;
    const int32_t* rows;   ///< rows of blocks
    int64_t height, edge;  ///< rows at or beyond `edge` are outside the matrix
    int count;             ///< lines of the sum
  };
  /// The columns begin at `first` in the blocks and end at `columns`.
  __device__ AcrossBlocks(const Blocks& blocks, const Gather& gather, int first, int64_t columns)
      : blocks_(blocks),
        gather_(gather),
        k_(Lines::line()),
        column_(first + Lines::column()),
        inside_(column_ < columns) {}

  __device__ __forceinline__ void load(std::byte* tile) {
    constexpr int kEach = kDepth / Lines::kApart;
    const uint16_t* from[kEach];
    bool there[kEach];
    // All lists are read before the first copy, because the compiler moves nothing across a copy.
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int line = k_ + j * Lines::kApart;
      const auto k = static_cast<uint32_t>(line < blocks_.count ? line : 0);
      const uint32_t block = gather_.block(k);
      const uint32_t row = k - block * gather_.extent();
      const int32_t row_of_blocks = blocks_.rows[block];
      const BlockPiece at = blocks_.pieces[block];
      there[j] =
          line < blocks_.count && inside_ && row_of_blocks * blocks_.height + row < blocks_.edge;
      from[j] = there[j] ? blocks_.values + at.first + int64_t{row} * at.stride + column_
                         : blocks_.values;
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      copy_async(tile + Lines::offset(j * Lines::kApart), from[j], there[j] ? kPieceBytes : 0);
    }
    k_ += kDepth;
  }

 private:
  Blocks blocks_;
  Gather gather_;
  int k_, column_;
  bool inside_;
};

}  // namespace espalier::kernels::ESPALIER_GPU
