#include "parallel/reduction/powersgd/factors.h"

#include <algorithm>

#include "parallel/reduction/flat.h"

namespace espalier::parallel {

void LowRank::set_matrices(std::vector<LowRankMatrix> matrices) {
  std::map<uint64_t, Kept> kept;
  int64_t end = 0;
  for (LowRankMatrix& matrix : matrices) {
    require(matrix.first >= end && matrix.rows >= 1 && matrix.cols >= 1 && matrix.rank >= 1,
            "ascending matrices", matrix.first, end, matrix.rows, matrix.cols, matrix.rank);
    end = matrix.end();
    matrix.rank = std::min({matrix.rank, matrix.rows, matrix.cols});
    const auto known = kept_.find(matrix.key);
    const bool same = known != kept_.end() && known->second.cols == matrix.cols &&
                      known->second.rank == matrix.rank;
    const bool added =
        kept.emplace(matrix.key, same ? std::move(known->second) : begin(matrix)).second;
    require(added, "a key of its own for each matrix", matrix.key, matrix.first);
  }
  matrices_ = std::move(matrices);
  kept_ = std::move(kept);
}

LowRank::Kept LowRank::begin(const LowRankMatrix& matrix) {
  Kept kept{.cols = matrix.cols,
            .rank = matrix.rank,
            .factor = stream_.arena().allocate(Memory::communication, "low-rank factor",
                                               DType::fp32, Shape{matrix.rank, matrix.cols})};
  // A P without rows has only zero columns, so each column of Q is drawn anew.
  const Tensor factor = kept.factor.tensor();
  const Tensor none = factor.elements(0, 0);
  kernels_.keep_factor(stream_, {.p = none.reshaped(Shape{matrix.rank, 0}),
                                 .q = factor,
                                 .factor = factor,
                                 .error = none,
                                 .gradient = none,
                                 .key = matrix.key});
  return kept;
}

std::span<const LowRankMatrix> LowRank::within(const Range& elements) const {
  if (!active_) {
    return {};
  }
  const auto begin = std::ranges::upper_bound(matrices_, elements.first, {},
                                              [](const auto& m) { return m.end() - 1; });
  const auto end = std::ranges::lower_bound(matrices_, elements.end(), {}, &LowRankMatrix::first);
  if (begin >= end) {
    return {};
  }
  require(begin->first >= elements.first && std::prev(end)->end() <= elements.end(),
          "whole matrices", elements.first, elements.end(), begin->first, std::prev(end)->end());
  return {begin, end};
}

bool LowRank::holds(int64_t element) const {
  const auto after = std::ranges::upper_bound(matrices_, element, {}, &LowRankMatrix::first);
  return active_ && after != matrices_.begin() && element < std::prev(after)->end();
}

const LowRankMatrix* LowRank::find(int64_t first) const {
  const auto found = std::ranges::lower_bound(matrices_, first, {}, &LowRankMatrix::first);
  return found != matrices_.end() && found->first == first ? &*found : nullptr;
}

Tensor LowRank::factor(const LowRankMatrix& matrix) const {
  const auto found = kept_.find(matrix.key);
  require(found != kept_.end(), "a matrix of the list", matrix.first, matrix.key);
  return found->second.factor.tensor();
}

Tensor LowRank::error_of(const LowRankMatrix& matrix) const {
  return feedback_.elements(matrix.first, matrix.count());
}

Tensor LowRank::matrix_of(const LowRankMatrix& matrix) const {
  return error_of(matrix).reshaped(Shape{matrix.rows, matrix.cols});
}

void LowRank::release(const Range& elements, const Tensor& gradient) {
  for (const Range& range : released_) {
    const int64_t first = std::max(range.first, elements.first);
    const int64_t count = std::min(range.end(), elements.end()) - first;
    if (count > 0) {
      const Tensor error = feedback_.elements(first, count);
      kernels_.cast(
          stream_,
          {.x = error, .y = gradient.elements(first - elements.first, count), .accumulate = true});
      kernels_.fill(stream_, {.x = error, .value = 0});
    }
  }
}

void LowRank::project(const LowRankMatrix& matrix, const Tensor& gradient, const Tensor& p) {
  kernels_.cast(stream_, {.x = gradient, .y = error_of(matrix), .accumulate = true});
  kernels_.gemm(stream_,
                {.a = factor(matrix), .b = matrix_of(matrix), .c = p, .transpose_b = true});
}

void LowRank::project_back(const LowRankMatrix& matrix, const Tensor& p, const Tensor& q) {
  kernels_.orthonormalise(stream_, {.x = p});
  kernels_.gemm(stream_, {.a = p, .b = matrix_of(matrix), .c = q});
}

/// -0 - x, which equals -x for zeros too.
void LowRank::negate(const Tensor& x, const Tensor& y) {
  kernels_.fill(stream_, {.x = y, .value = -0.0F});
  kernels_.difference(stream_, {.a = y, .b = x, .y = y});
}

void LowRank::keep_rest(const LowRankMatrix& matrix, const Tensor& p, const Tensor& minus_q) {
  kernels_.gemm(
      stream_,
      {.a = p, .b = minus_q, .c = matrix_of(matrix), .transpose_a = true, .accumulate = true});
}

void LowRank::finish(const LowRankMatrix& matrix, const Tensor& p, const Tensor& q,
                     const Tensor& gradient) {
  multiply(p, q, gradient.reshaped(Shape{matrix.rows, matrix.cols}));
  kernels_.keep_factor(stream_, {.p = p,
                                 .q = q,
                                 .factor = factor(matrix),
                                 .error = error_of(matrix),
                                 .gradient = gradient,
                                 .key = matrix.key});
}

/// gradient = P Qᵀ
void LowRank::multiply(const Tensor& p, const Tensor& q, const Tensor& gradient) {
  if (gradient.dtype == DType::fp32) {
    kernels_.gemm(stream_, {.a = p, .b = q, .c = gradient, .transpose_a = true});
    return;
  }
  const int64_t cols = gradient.cols();
  const int64_t height = std::clamp<int64_t>(panel_elements_ / cols, 1, gradient.rows());
  reserve(stream_.arena(), panel_, "rows of a sum", DType::fp32, height * cols);
  for (int64_t row = 0; row < gradient.rows(); row += height) {
    const int64_t rows = std::min(height, gradient.rows() - row);
    const Tensor sum = panel_.tensor().elements(0, rows * cols);
    kernels_.gemm(stream_, {.a = p.column_range(row, rows),
                            .b = q,
                            .c = sum.reshaped(Shape{rows, cols}),
                            .transpose_a = true});
    kernels_.cast(stream_,
                  {.x = sum, .y = gradient.row_range(row, rows).reshaped(Shape{rows * cols})});
  }
}

}  // namespace espalier::parallel
