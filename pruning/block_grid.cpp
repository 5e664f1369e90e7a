#include "pruning/block_grid.h"

namespace espalier::pruning {

std::vector<BlockGrid::Part> BlockGrid::parts() const {
  const int64_t whole_rows = rows_ / edge_;
  const int64_t whole_cols = cols_ / edge_;
  std::vector<Part> parts;
  for (const auto& [row, rows] :
       {std::pair{int64_t{0}, whole_rows}, {whole_rows, down_ - whole_rows}}) {
    for (const auto& [col, cols] :
         {std::pair{int64_t{0}, whole_cols}, {whole_cols, across_ - whole_cols}}) {
      if (rows > 0 && cols > 0) {
        parts.push_back({.first_row = row, .first_col = col, .rows = rows, .cols = cols});
      }
    }
  }
  return parts;
}

std::vector<double> BlockGrid::squares(std::span<const float> dense) const {
  std::vector<double> sums(static_cast<size_t>(count()));
  const float* value = dense.data();
  for (int64_t row = 0; row < rows_; ++row) {
    double* of_row = sums.data() + row / edge_ * across_;
    for (int64_t col = 0; col < cols_; ++col) {
      const double x = *value++;
      of_row[col / edge_] += x * x;
    }
  }
  return sums;
}

sparse::Mask BlockGrid::elements(const sparse::Mask& blocks) const {
  sparse::Mask mask(rows_ * cols_, false);
  sparse::for_each_one(blocks.words(), [&](int64_t block) {
    const int64_t top = block / across_ * edge_;
    const int64_t left = block % across_ * edge_;
    for (int64_t row = top; row < std::min(top + edge_, rows_); ++row) {
      for (int64_t col = left; col < std::min(left + edge_, cols_); ++col) {
        mask.set(row * cols_ + col, true);
      }
    }
  });
  return mask;
}

}  // namespace espalier::pruning
