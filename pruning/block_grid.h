#pragma once
// The b x b blocks of a matrix view (all axes but the last x last), numbered row by row. Blocks at
// the right and the lower edge are smaller.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sparse/index/mask.h"
#include "src/core/types.h"

namespace espalier::pruning {

class BlockGrid {
 public:
  BlockGrid(const Shape& shape, int64_t edge)
      : rows_(shape.rows()),
        cols_(shape.cols()),
        edge_(edge),
        down_((rows_ + edge - 1) / edge),
        across_((cols_ + edge - 1) / edge) {}

  int64_t down() const { return down_; }      ///< rows of blocks
  int64_t across() const { return across_; }  ///< columns of blocks
  int64_t count() const { return down_ * across_; }
  /// Elements of a block.
  int64_t area(int64_t number) const {
    const int64_t row = number / across_ * edge_;
    const int64_t col = number % across_ * edge_;
    return std::min(edge_, rows_ - row) * std::min(edge_, cols_ - col);
  }
  /// Calls fn(position, block number) for each kept element, ascending.
  template <class Fn>
  void for_each(const sparse::Mask& mask, Fn&& fn) const {
    int64_t row_begin = 0;
    int64_t first_block = 0;
    sparse::for_each_one(mask.words(), [&](int64_t position) {
      if (position - row_begin >= cols_) {
        const int64_t row = position / cols_;
        row_begin = row * cols_;
        first_block = row / edge_ * across_;
      }
      fn(position, static_cast<size_t>(first_block + (position - row_begin) / edge_));
    });
  }

  /// Blocks of one size, which form a matrix of their own.
  struct Part {
    int64_t first_row, first_col;  ///< of its first block, counted in blocks
    int64_t rows, cols;            ///< blocks

    int64_t count() const { return rows * cols; }
  };
  /// The whole blocks, then those at the right edge, at the lower edge, and in the corner, if there
  /// are any. Moves within a part keep the number of elements.
  std::vector<Part> parts() const;
  /// The number of the i-th block of a part, row by row.
  size_t number(const Part& part, int64_t i) const {
    return static_cast<size_t>((part.first_row + i / part.cols) * across_ + part.first_col +
                               i % part.cols);
  }

  /// Sums of the squares of a dense array, by block.
  std::vector<double> squares(std::span<const float> dense) const;
  /// The mask of elements that keeps whole blocks.
  sparse::Mask elements(const sparse::Mask& blocks) const;

 private:
  int64_t rows_, cols_, edge_, down_, across_;
};

}  // namespace espalier::pruning
