#include "parallel/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "parallel/flat.h"
#include "src/core/rng.h"

namespace espalier::parallel {

namespace {

/// Below this share of its length, what is left of a column is rounding of fp32 sums.
constexpr double kDependent = 0x1p-18;
/// Elements of a panel of fp32 sums.
constexpr int64_t kPanel = int64_t{1} << 16;

/// Numbers in [-1, 1) that are the same on every machine.
void draw(uint64_t key, int64_t column, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const Philox words = philox(key, static_cast<uint64_t>(column), i / 4);
    out[i] = 2 * uniform(words[i % 4]) - 1;
  }
}

/// In an order that the length alone decides.
double dot(std::span<const double> a, std::span<const double> b) {
  constexpr size_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += a[i + lane] * b[i + lane];
    }
  }
  double sum = 0;
  for (; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

void subtract(std::span<double> from, double factor, std::span<const double> what) {
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] -= factor * what[i];
  }
}

bool finite(const Tensor& x) {
  const auto values = x.span<float>();
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

}  // namespace

void orthonormalise(const Tensor& p) {
  const auto rank = static_cast<size_t>(p.rows());
  const auto rows = static_cast<size_t>(p.cols());
  const auto values = p.span<float>();
  std::vector<double> columns(values.begin(), values.end());
  const auto column = [&](size_t i) { return std::span(columns).subspan(i * rows, rows); };
  for (size_t i = 0; i < rank; ++i) {
    const auto now = column(i);
    const double before = std::sqrt(dot(now, now));
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t j = 0; j < i; ++j) {
        subtract(now, dot(column(j), now), column(j));
      }
    }
    const double length = std::sqrt(dot(now, now));
    // NaN is not dependent: it goes on to be seen.
    const double scale = length <= kDependent * before ? 0 : 1 / length;
    std::ranges::transform(now, now.begin(), [&](double x) { return scale == 0 ? 0 : x * scale; });
  }
  std::ranges::transform(columns, values.begin(), [](double x) { return static_cast<float>(x); });
}

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
  for (int64_t k = 0; k < matrix.rank; ++k) {
    draw(matrix.key, k, kept.factor.tensor().row_range(k, 1).span<float>());
  }
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

Tensor LowRank::matrix_of(const LowRankMatrix& matrix) const {
  return flat_part(feedback_, matrix.first, matrix.count())
      .reshaped(Shape{matrix.rows, matrix.cols});
}

void LowRank::release(const Range& elements, const Tensor& gradient) {
  for (const Range& range : released_) {
    const int64_t first = std::max(range.first, elements.first);
    const int64_t count = std::min(range.end(), elements.end()) - first;
    if (count > 0) {
      const Tensor error = flat_part(feedback_, first, count);
      kernels_.cast(stream_, {.x = error,
                              .y = flat_part(gradient, first - elements.first, count),
                              .accumulate = true});
      kernels_.fill(stream_, {.x = error, .value = 0});
    }
  }
}

void LowRank::project(const LowRankMatrix& matrix, const Tensor& gradient, const Tensor& p) {
  const Tensor m = matrix_of(matrix);
  kernels_.cast(stream_,
                {.x = gradient, .y = m.reshaped(Shape{matrix.count()}), .accumulate = true});
  kernels_.gemm(stream_, {.a = factor(matrix), .b = m, .c = p, .transpose_b = true});
}

void LowRank::project_back(const LowRankMatrix& matrix, const Tensor& p, const Tensor& q) {
  kernels_.gemm(stream_, {.a = p, .b = matrix_of(matrix), .c = q});
}

void LowRank::keep_rest(const LowRankMatrix& matrix, const Tensor& p, const Tensor& minus_q) {
  kernels_.gemm(
      stream_,
      {.a = p, .b = minus_q, .c = matrix_of(matrix), .transpose_a = true, .accumulate = true});
}

void LowRank::finish(const LowRankMatrix& matrix, const Tensor& p, const Tensor& q,
                     const Tensor& gradient) {
  if (!finite(p) || !finite(q)) {
    kernels_.fill(stream_, {.x = gradient, .value = std::numeric_limits<float>::quiet_NaN()});
    kernels_.fill(stream_, {.x = flat_part(feedback_, matrix.first, matrix.count()), .value = 0});
    return;
  }
  multiply(p, q, gradient.reshaped(Shape{matrix.rows, matrix.cols}));
  const Tensor kept = factor(matrix);
  std::ranges::copy(q.span<float>(), kept.get<float>());
  for (int64_t k = 0; k < matrix.rank; ++k) {
    const auto column = p.row_range(k, 1).span<float>();
    if (std::ranges::all_of(column, [](float x) { return x == 0; })) {
      draw(matrix.key, k, kept.row_range(k, 1).span<float>());
    }
  }
}

/// gradient = P Qᵀ
void LowRank::multiply(const Tensor& p, const Tensor& q, const Tensor& gradient) {
  if (gradient.dtype == DType::fp32) {
    kernels_.gemm(stream_, {.a = p, .b = q, .c = gradient, .transpose_a = true});
    return;
  }
  const int64_t cols = gradient.cols();
  const int64_t height = std::clamp<int64_t>(kPanel / cols, 1, gradient.rows());
  if (!panel_.tensor() || panel_.tensor().count() < height * cols) {
    panel_.release();
    panel_ = stream_.arena().allocate(Memory::communication, "rows of a sum", DType::fp32,
                                      Shape{height * cols});
  }
  for (int64_t row = 0; row < gradient.rows(); row += height) {
    const int64_t rows = std::min(height, gradient.rows() - row);
    const Tensor sum = flat_part(panel_.tensor(), 0, rows * cols);
    kernels_.gemm(stream_, {.a = p.column_range(row, rows),
                            .b = q,
                            .c = sum.reshaped(Shape{rows, cols}),
                            .transpose_a = true});
    kernels_.cast(stream_,
                  {.x = sum, .y = gradient.row_range(row, rows).reshaped(Shape{rows * cols})});
  }
}

}  // namespace espalier::parallel
