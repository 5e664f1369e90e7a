#include "src/train/codec_choice/curve_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace espalier::train {
namespace {

constexpr double kFuture = 0.693147180559945309;  // ln 2: the horizon of the prior on change
constexpr int kGrid = 9;                          // nodes per parameter
constexpr int kSteps = 30;
constexpr size_t kStarts = 3;

/// One row of the linear problem: offset(u) and the one or two basis functions.
struct Row {
  double offset = 0;
  std::array<double, 2> basis{1, 0};
};

Row row_of(const CurveData& data, const CurveShape& shape, const LinearFit& fit, double log_u) {
  const double value = shape.value(fit.p, log_u, data.log_first);
  switch (shape.link) {
    case CurveLink::affine:
      return {.offset = 0, .basis = {1, (value - fit.value_at_last) / fit.unit}};
    case CurveLink::scaled: {
      const double ratio = value / fit.value_at_last;
      return {.offset = data.raw_centre * (ratio - 1), .basis = {ratio, 0}};
    }
    case CurveLink::added:
      break;
  }
  return {.offset = value * data.inverse_range, .basis = {1, 0}};
}

/// Sets value_at_last and unit: with amplitude 1 the curve then changes by the amount that the
/// priors expect.
bool scale(const CurveData& data, const CurveShape& shape, LinearFit& fit) {
  fit.value_at_last = shape.value(fit.p, 0, data.log_first);
  if (shape.link != CurveLink::affine) {
    return std::isfinite(fit.value_at_last) &&
           (shape.link == CurveLink::added || fit.value_at_last != 0);
  }
  const double past = shape.value(fit.p, data.log_first, data.log_first) - fit.value_at_last;
  const double future = shape.value(fit.p, kFuture, data.log_first) - fit.value_at_last;
  fit.unit = std::abs(past) / data.past_prior + std::abs(future) / data.future_prior;
  return std::isfinite(fit.unit) && fit.unit > 1e-12 * std::abs(fit.value_at_last) && fit.unit > 0;
}

struct Normal {  // normal equations of the least-squares problem
  double a00 = 0, a01 = 0, a11 = 0, b0 = 0, b1 = 0;
};

double square(double x) { return x * x; }

/// Prior of the change, for shapes without a free amplitude.
double log_change_prior(const CurveData& data, const CurveShape& shape, const LinearFit& fit) {
  if (shape.link == CurveLink::affine) {
    return 0;
  }
  const double future = predict_linear(data, shape, fit, kFuture).mean - fit.beta[0];
  return -0.5 * square(future / data.future_prior);
}

}  // namespace

LinearFit fit_linear(const CurveData& data, const CurveShape& shape, const CurveParameters& p,
                     std::span<double> residuals) {
  LinearFit fit{.p = p};
  if (!scale(data, shape, fit)) {
    return fit;
  }
  const bool two = shape.link == CurveLink::affine;
  const double level_precision = data.noise / square(data.level_prior);
  const double amplitude_precision = two ? data.noise : 1;
  Normal sum{.a00 = level_precision, .a11 = amplitude_precision};
  std::vector<Row> rows(data.z.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = row_of(data, shape, fit, data.log_u[i]);
    const auto& [offset, basis] = rows[i];
    const double w = data.weight[i];
    sum.a00 += w * basis[0] * basis[0];
    sum.a01 += w * basis[0] * basis[1];
    sum.a11 += w * basis[1] * basis[1];
    sum.b0 += w * basis[0] * (data.z[i] - offset);
    sum.b1 += w * basis[1] * (data.z[i] - offset);
  }
  const double determinant = sum.a00 * sum.a11 - sum.a01 * sum.a01;
  if (!std::isfinite(determinant) || determinant <= 0) {
    return fit;
  }
  fit.spread = {sum.a11 / determinant, -sum.a01 / determinant, sum.a00 / determinant};
  fit.beta = {fit.spread[0] * sum.b0 + fit.spread[1] * sum.b1,
              fit.spread[1] * sum.b0 + fit.spread[2] * sum.b1};
  const std::array<double, 2> of_priors{std::sqrt(level_precision) * fit.beta[0],
                                        std::sqrt(amplitude_precision) * fit.beta[1]};
  fit.squares = square(of_priors[0]) + square(of_priors[1]);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& [offset, basis] = rows[i];
    const double residual = std::sqrt(data.weight[i]) *
                            (data.z[i] - offset - basis[0] * fit.beta[0] - basis[1] * fit.beta[1]);
    fit.squares += square(residual);
    if (!residuals.empty()) {
      residuals[i] = residual;
    }
  }
  if (!residuals.empty()) {
    std::ranges::copy(of_priors, residuals.end() - 2);
  }
  if (!std::isfinite(fit.squares)) {
    return fit;
  }
  fit.valid = true;
  fit.log_evidence =
      0.5 * (std::log(level_precision * amplitude_precision) - std::log(determinant)) -
      0.5 * (data.prior_count + data.count) * std::log(data.prior_squares + fit.squares) +
      log_change_prior(data, shape, fit);
  return fit;
}

LinearPrediction predict_linear(const CurveData& data, const CurveShape& shape,
                                const LinearFit& fit, double log_u) {
  const auto [offset, basis] = row_of(data, shape, fit, log_u);
  return {.mean = offset + basis[0] * fit.beta[0] + basis[1] * fit.beta[1],
          .spread = basis[0] * basis[0] * fit.spread[0] + 2 * basis[0] * basis[1] * fit.spread[1] +
                    basis[1] * basis[1] * fit.spread[2]};
}

namespace {

double squares_at(const CurveData& data, const CurveShape& shape, const CurveParameters& at,
                  std::span<double> residuals = {}) {
  const LinearFit fit = fit_linear(data, shape, shape.at(at, data.log_first), residuals);
  return fit.valid ? fit.squares : std::numeric_limits<double>::infinity();
}

/// J^T J and J^T r of the projected residuals, by finite differences; false if a neighbour gives no
/// curve.
struct Slopes {
  std::array<double, 3> curvature{};
  std::array<double, 2> gradient{};
  bool valid = true;
};

Slopes slopes_at(const CurveData& data, const CurveShape& shape, const CurveParameters& at,
                 std::span<const double> residuals) {
  constexpr double kDelta = 1e-6;
  std::array<std::vector<double>, 2> column;
  Slopes slopes;
  for (size_t k = 0; k < shape.parameters; ++k) {
    column[k].resize(residuals.size());
    const double delta = at[k] > 0.5 ? -kDelta : kDelta;
    CurveParameters moved = at;
    moved[k] += delta;
    slopes.valid &= std::isfinite(squares_at(data, shape, moved, column[k]));
    for (size_t i = 0; i < residuals.size(); ++i) {
      column[k][i] = (column[k][i] - residuals[i]) / delta;
      slopes.gradient[k] += column[k][i] * residuals[i];
    }
  }
  for (size_t i = 0; i < residuals.size(); ++i) {
    const double first = column[0][i];
    const double second = shape.parameters == 2 ? column[1][i] : 0;
    slopes.curvature[0] += first * first;
    slopes.curvature[1] += first * second;
    slopes.curvature[2] += second * second;
  }
  return slopes;
}

/// A Levenberg-Marquardt step within the box: a parameter that would leave it stays at its
/// boundary.
CurveParameters stepped(const CurveParameters& at, const Slopes& slopes, double damping) {
  auto [a00, a01, a11] = slopes.curvature;
  auto [g0, g1] = slopes.gradient;
  const auto walled = [](double t, double g) { return (t <= 0 && g > 0) || (t >= 1 && g < 0); };
  if (walled(at[0], g0)) {
    g0 = a01 = 0;
  }
  if (walled(at[1], g1)) {
    g1 = a01 = 0;
  }
  a00 = a00 * (1 + damping) + 1e-300;
  a11 = a11 * (1 + damping) + 1e-300;
  const double determinant = a00 * a11 - a01 * a01;
  const double d0 = -(a11 * g0 - a01 * g1) / determinant;
  const double d1 = -(a00 * g1 - a01 * g0) / determinant;
  return {std::clamp(at[0] + d0, 0.0, 1.0), std::clamp(at[1] + d1, 0.0, 1.0)};
}

}  // namespace

CurveMinimum improve(const CurveData& data, const CurveShape& shape, const CurveParameters& start) {
  std::vector<double> residuals(data.z.size() + 2);
  CurveMinimum best{.square = start, .squares = squares_at(data, shape, start, residuals)};
  double damping = 1e-3;
  std::vector<double> tried(residuals.size());
  Slopes slopes = slopes_at(data, shape, best.square, residuals);
  for (int step = 0; step < kSteps && slopes.valid && damping < 1e8; ++step) {
    const CurveParameters next = stepped(best.square, slopes, damping);
    const double squares = squares_at(data, shape, next, tried);
    if (!(squares < best.squares)) {
      damping = std::max(damping, 1e-6) * 10;
      continue;
    }
    const bool done = best.squares - squares < 1e-7 * squares + 1e-4 * data.prior_squares;
    best.square = next;
    best.squares = squares;
    std::swap(residuals, tried);
    damping /= 10;
    slopes = slopes_at(data, shape, best.square, residuals);
    if (done) {
      break;
    }
  }
  best.curvature = slopes.valid ? slopes.curvature : std::array<double, 3>{};
  return best;
}

CurveMinimum search(const CurveData& data, const CurveShape& shape) {
  std::vector<CurveMinimum> nodes;
  for (int i = 0; i < kGrid; ++i) {
    for (int j = 0; j < (shape.parameters == 2 ? kGrid : 1); ++j) {
      const CurveParameters at{(i + 0.5) / kGrid, shape.parameters == 2 ? (j + 0.5) / kGrid : 0};
      nodes.push_back({.square = at, .squares = squares_at(data, shape, at)});
    }
  }
  const size_t starts = std::min(kStarts, nodes.size());
  const auto middle = nodes.begin() + static_cast<std::ptrdiff_t>(starts);
  std::ranges::partial_sort(nodes, middle, {}, &CurveMinimum::squares);
  CurveMinimum best = nodes.front();
  for (size_t i = 0; i < starts; ++i) {
    if (std::isfinite(nodes[i].squares)) {
      const CurveMinimum found = improve(data, shape, nodes[i].square);
      best = found.squares <= best.squares ? found : best;
    }
  }
  return best;
}

}  // namespace espalier::train
