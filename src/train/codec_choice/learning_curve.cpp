#include "src/train/codec_choice/learning_curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "src/core/error.h"
#include "src/core/rng.h"
#include "src/train/codec_choice/curve_shape.h"

namespace espalier::train {
namespace {

// All constants are in units of the range of y.
constexpr double kPriorNoise = 0.03;  // standard deviation; counts as one point
constexpr double kMinNoise = 1e-6;
constexpr double kFitted = 3;          // number of fitted parameters
constexpr double kLevelPrior = 3;      // standard deviation of the level at the last x
constexpr double kDiscrepancy = 0.15;  // deviation of real curves from all shapes, as a part of the
constexpr double kFewPoints = 4;       // mean slope against ln x, times 1 + this / points
constexpr int kRounds = 6;
constexpr int kDraws = 160;  // of parameters, per shape
constexpr uint64_t kSeed = 1;
constexpr double kMinInside = 1e-3;       // weight of draws that keep to the bounds
constexpr double kSmallestCount = 2;      // least effective number of points
constexpr double kWholeBox = 1.0 / 3;     // part of the draws
constexpr double kDegrees = 4;            // of the proposal's t
constexpr double kProposalStretch = 1.3;  // in standard deviations

double square(double x) { return x * x; }

// One shape fitted to the points of one curve, in dimensionless units: u = x / (last x),
// z = (y - centre) / range.
//
// Given the nonlinear parameters p, the curve is offset(u) + basis(u) beta with one or two linear
// coefficients beta: the level at u = 1, and the amplitude. The priors beta ~ N(0, s^2 V) and
// s^2 ~ inverse gamma(prior_count / 2, prior_squares / 2), s^2 the variance of the noise, have
// closed posteriors:
//   evidence(p) = |V|^-1/2 |A|^-1/2 (prior_squares + Q)^-(prior_count + n)/2,
//   A = V^-1 + B^T W B,  Q = min over beta of sum w (z - offset - B beta)^2 + beta^T V^-1 beta.
// A prediction has Student's t distribution. Weights w (sum n) are powers of the likelihood: they
// give recent points more influence, and correlated points less.
//
// Minima of Q over p: a grid, then Levenberg-Marquardt steps on the projected residuals ("variable
// projection": Golub, Pereyra, SIAM J. Numer. Anal. 10, 1973).
// Cost: n exponentials or powers per evaluated p.

struct CurveData {
  std::vector<double> log_u, z, weight;
  double log_first = 0;      ///< first element of log_u; the last is 0
  double raw_centre = 0;     ///< centre / range: y = 0 is at z = -raw_centre
  double inverse_range = 1;  ///< 1 / range of y
  double count = 0;          ///< n: sum of the weights
  double prior_count = 1, prior_squares = 1e-4;
  double noise = 1e-3;      ///< expected variance: priors of beta in units of s^2
  double level_prior = 3;   ///< standard deviation of the level at u = 1
  double past_prior = 1;    ///< standard deviation of the change from the first u to 1
  double future_prior = 1;  ///< standard deviation of the change from u = 1 to u = 2
};

/// Posterior of beta, given p.
struct LinearFit {
  bool valid = false;  ///< false: p gives no curve (overflow, or flat)
  std::array<double, 2> beta{};
  std::array<double, 3> spread{};  ///< A^-1: (0,0), (0,1), (1,1)
  double squares = 0;              ///< Q
  double log_evidence = 0;
  CurveParameters p{};
  double value_at_last = 0, unit = 1;  ///< values v of the shape: basis = (v - v(1)) / unit
};

/// Mean, and variance in units of s^2, without the noise of a single observation.
struct LinearPrediction {
  double mean = 0, spread = 0;
};

/// A minimum of Q in the unit square, and J^T J of the residuals there.
struct CurveMinimum {
  CurveParameters square{};
  std::array<double, 3> curvature{};  ///< (0,0), (0,1), (1,1)
  double squares = 0;
};
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

LinearPrediction predict_linear(const CurveData& data, const CurveShape& shape,
                                const LinearFit& fit, double log_u) {
  const auto [offset, basis] = row_of(data, shape, fit, log_u);
  return {.mean = offset + basis[0] * fit.beta[0] + basis[1] * fit.beta[1],
          .spread = basis[0] * basis[0] * fit.spread[0] + 2 * basis[0] * basis[1] * fit.spread[1] +
                    basis[1] * basis[1] * fit.spread[2]};
}

/// Prior of the change, for shapes without a free amplitude.
double log_change_prior(const CurveData& data, const CurveShape& shape, const LinearFit& fit) {
  if (shape.link == CurveLink::affine) {
    return 0;
  }
  const double future = predict_linear(data, shape, fit, kFuture).mean - fit.beta[0];
  return -0.5 * square(future / data.future_prior);
}

/// `residuals`, if not empty: sqrt(w) (z - curve) of each point, then the square roots of the two
/// prior terms.
LinearFit fit_linear(const CurveData& data, const CurveShape& shape, const CurveParameters& p,
                     std::span<double> residuals = {}) {
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

/// Descends from `start`.
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

/// Evaluates a grid, descends from its best three nodes, and returns the best result.
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

void check_points(std::span<const CurvePoint> points) {
  check(points.size() >= 3, "a learning curve needs at least 3 points to be continued; it has {}",
        points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& [x, y] = points[i];
    check(std::isfinite(x) && std::isfinite(y),
          "point {} of the learning curve is ({}, {}): leave out evaluations that gave no number",
          i, x, y);
    check(x > 0,
          "x of a learning curve counts from the start of training and is above 0; point {} has {}",
          i, x);
    check(i == 0 || x > points[i - 1].x,
          "x of a learning curve must ascend; point {} has {} after {}", i, x,
          i ? points[i - 1].x : 0);
  }
}

/// The curve in dimensionless units: log u, z, and weights 10^(i/n), scaled to the sum of the
/// effective number of points (sum w)^2 / sum w^2.
CurveData standardised(std::span<const CurvePoint> points, double centre, double range) {
  CurveData data;
  const double last = points.back().x;
  double sum = 0;
  double squares = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    data.log_u.push_back(std::log(points[i].x / last));
    data.z.push_back((points[i].y - centre) / range);
    const double w =
        std::pow(10.0, static_cast<double>(i + 1) / static_cast<double>(points.size()));
    data.weight.push_back(w);
    sum += w;
    squares += w * w;
  }
  data.count = sum * sum / squares;
  for (double& w : data.weight) {
    w *= data.count / sum;
  }
  data.log_first = data.log_u.front();
  data.raw_centre = centre / range;
  data.inverse_range = 1 / range;
  data.prior_count = 1;
  data.prior_squares = square(kPriorNoise);
  data.level_prior = kLevelPrior;
  data.past_prior = 1;
  data.future_prior = std::max(1.0, std::numbers::ln2 / -data.log_first);
  data.noise = square(kPriorNoise);
  return data;
}

/// Estimates noise and effective number of points from the residuals of the best shape. The
/// estimate replaces the prior's noise (geometric mean), with a weight that grows with the number
/// of points beyond the number of parameters. `data` has the weights of `standardised`.
CurveData adapted(CurveData data, std::span<const CurveMinimum> minima) {
  const auto best = std::ranges::min_element(minima, {}, &CurveMinimum::squares);
  const CurveShape& shape = curve_shapes()[static_cast<size_t>(best - minima.begin())];
  std::vector<double> residuals(data.z.size() + 2);
  fit_linear(data, shape, shape.at(best->square, data.log_first), residuals);
  double squares = 0;
  double products = 0;  // of neighbouring residuals
  for (size_t i = 0; i < data.z.size(); ++i) {
    squares += square(residuals[i]);
    products += i == 0 ? 0 : residuals[i] * residuals[i - 1];
  }
  const double free = std::max(data.count - kFitted, 0.0);
  const double measured = std::max(squares / std::max(free, 1.0), square(kMinNoise));
  const double part = free / (free + kFitted);
  data.prior_squares = std::pow(square(kPriorNoise), 1 - part) * std::pow(measured, part);
  data.noise = (data.prior_squares + squares) / (data.prior_count + free);
  const double r = std::clamp(products / (data.prior_squares + squares), 0.0, 0.95);
  const double worth = std::max(data.count * (1 - r) / (1 + r), kSmallestCount);
  for (double& w : data.weight) {
    w *= worth / data.count;
  }
  data.count = worth;
  return data;
}

/// Multivariate t around a minimum, in the unit square, mixed with the whole square.
class Proposal {
 public:
  Proposal(const CurveData& data, const CurveShape& shape, const CurveMinimum& minimum)
      : two_(shape.parameters == 2), centre_(minimum.square) {
    // Posterior precision: least squares' J^T J over the noise, and the box's own 12.
    const double variance =
        (data.prior_squares + minimum.squares) / (data.prior_count + data.count);
    const double p00 = minimum.curvature[0] / variance + 12;
    const double p01 = minimum.curvature[1] / variance;
    const double p11 = minimum.curvature[2] / variance + 12;
    const double determinant = two_ ? p00 * p11 - p01 * p01 : p00;
    // Cholesky factor of the inverse.
    l00_ = kProposalStretch * std::sqrt((two_ ? p11 : 1) / determinant);
    l10_ = two_ ? -square(kProposalStretch) * p01 / determinant / l00_ : 0;
    l11_ = two_ ? kProposalStretch * std::sqrt(1 / p11) : 1;
  }

  [[nodiscard]] CurveParameters draw(uint64_t key, uint64_t i, bool whole_box) const {
    const Philox bits = philox(key, 0, i);
    if (whole_box) {
      return {uniform(bits[0]), two_ ? uniform(bits[1]) : 0};
    }
    const auto [a, b] = normal_pair(bits[0], bits[1]);
    // Chi-squared with 4 degrees is minus twice the logarithm of a product of two uniforms.
    const double chi = -2 * (std::log(1.0 - uniform(bits[2])) + std::log(1.0 - uniform(bits[3])));
    const double stretch = std::sqrt(kDegrees / std::max(chi, 1e-6));
    return {centre_[0] + stretch * l00_ * a,
            two_ ? centre_[1] + stretch * (l10_ * a + l11_ * b) : 0};
  }

  [[nodiscard]] double density(const CurveParameters& at) const {
    const double a = (at[0] - centre_[0]) / l00_;
    const double b = two_ ? (at[1] - centre_[1] - l10_ * a) / l11_ : 0;
    const double inner = 1 + (a * a + b * b) / kDegrees;
    // Gamma((4 + d) / 2) / (Gamma(2) (4 pi)^(d / 2) |L|) inner^-(4 + d)/2
    const double t = two_ ? 2 / (4 * std::numbers::pi * l00_ * l11_) / (inner * inner * inner)
                          : 1.3293403881791370 / (2 * std::sqrt(std::numbers::pi) * l00_) /
                                (inner * inner * std::sqrt(inner));
    return kWholeBox + (1 - kWholeBox) * t;
  }

 private:
  bool two_;
  CurveParameters centre_;
  double l00_, l10_, l11_;
};

bool inside(const CurveParameters& at) {
  return at[0] >= 0 && at[0] <= 1 && at[1] >= 0 && at[1] <= 1;
}

/// Draws of all shapes, fitted to one curve. Predicts curves that have points at the same x.
class LearningCurve {
 public:
  LearningCurve(std::span<const CurvePoint> points, double least) : least_(least) {
    check_points(points);
    const auto [low, high] = std::ranges::minmax(points, {}, &CurvePoint::y);
    const double largest = std::max(std::abs(low.y), std::abs(high.y));
    last_x_ = points.back().x;
    centre_ = points.back().y;
    // Lower limit of the range: a curve that is constant in all its digits may still change.
    range_ = std::max({high.y - low.y, 1e-4 * largest, 1e-300});
    check(low.y >= least_, "a point of the learning curve has y = {}, below the bound {}", low.y,
          least_);
    data_ = standardised(points, centre_, range_);
    const auto shapes = curve_shapes();
    std::vector<CurveMinimum> minima;
    for (const CurveShape& shape : shapes) {
      minima.push_back(search(data_, shape));
    }
    // Repeat while the noise estimate falls: priors are in units of the noise, so an estimate that
    // is too large distorts the first fits.
    CurveData plain = data_;
    double before = 0;
    for (int round = 0; round < kRounds && (round == 0 || data_.noise < 0.5 * before); ++round) {
      plain.noise = before = data_.noise;
      data_ = adapted(plain, minima);
      for (size_t s = 0; s < shapes.size(); ++s) {
        minima[s] = improve(data_, shapes[s], minima[s].square);
      }
    }
    draws_.resize(shapes.size());
    std::vector<double> log_weights;
    for (size_t s = 0; s < shapes.size(); ++s) {
      draw(s, minima[s], log_weights);
    }
    const double largest_log = std::ranges::max(log_weights);
    double sum = 0;
    for (double& w : log_weights) {
      w = std::exp(w - largest_log);
      sum += w;
    }
    size_t next = 0;
    for (auto& draws : draws_) {
      for (Draw& draw : draws) {
        draw.weight = log_weights[next++] / sum;
      }
    }
  }

  /// Prediction at `x` for `points`: only level and amplitude of each draw are fitted to them.
  [[nodiscard]] CurvePrediction at(double x, std::span<const CurvePoint> points) const {
    check(std::isfinite(x) && x > 0, "a learning curve is continued to an x above 0, not to {}", x);
    const CurveData data = with_values_of(points);
    const double log_u = std::log(x / last_x_);
    const auto shapes = curve_shapes();
    double mean = 0;
    double second = 0;
    double total = 0;   // weight
    double inside = 0;  // weight of draws above the bound
    for (size_t s = 0; s < shapes.size(); ++s) {
      double weight = 0;
      double first_moment = 0;
      double second_moment = 0;
      for (const Draw& draw : draws_[s]) {
        const LinearFit fit = fit_linear(data, shapes[s], draw.p);
        const LinearPrediction p = predict_linear(data_, shapes[s], fit, log_u);
        if (draw.weight == 0 || !fit.valid || !std::isfinite(p.mean)) {
          continue;
        }
        total += draw.weight;
        if (centre_ + range_ * p.mean < least_) {
          continue;
        }
        weight += draw.weight;
        first_moment += draw.weight * p.mean;
        second_moment += draw.weight * (square(p.mean) + variance_of(fit) * (1 + p.spread));
      }
      inside += weight;
      mean += first_moment;
      second += second_moment;
    }
    if (inside < kMinInside * total) {
      mean = (least_ - centre_) / range_;
      second = square(mean);
    } else if (inside > 0) {
      mean /= inside;
      second /= inside;
    }
    if (log_u > 0) {
      const double few = 1 + kFewPoints / static_cast<double>(data_.z.size());
      second += square(kDiscrepancy * few * log_u / -data_.log_first);
    }
    return {.mean = centre_ + range_ * mean,
            .deviation = range_ * std::sqrt(std::max(second - square(mean), 0.0))};
  }

 private:
  struct Draw {
    CurveParameters p;
    double weight = 0;  ///< the sum over all draws of all shapes is 1
  };

  [[nodiscard]] CurveData with_values_of(std::span<const CurvePoint> points) const {
    check_points(points);
    CurveData data = data_;
    for (size_t i = 0; i < points.size(); ++i) {
      check(std::abs(std::log(points[i].x / last_x_) - data_.log_u[i]) < 1e-9,
            "point {} of a curve of the same shape has another x, {}", i, points[i].x);
      data.z[i] = (points[i].y - centre_) / range_;
    }
    return data;
  }

  /// s^2, including the factor of Student's t.
  [[nodiscard]] double variance_of(const LinearFit& fit) const {
    return (data_.prior_squares + fit.squares) / (data_.prior_count + data_.count - 2);
  }

  void draw(size_t shape_number, const CurveMinimum& minimum, std::vector<double>& log_weights) {
    const CurveShape& shape = curve_shapes()[shape_number];
    const Proposal proposal(data_, shape, minimum);
    const uint64_t key = mix(kSeed, shape_number);
    for (int i = 0; i < kDraws; ++i) {
      const CurveParameters at =
          proposal.draw(key, static_cast<uint64_t>(i), i < kDraws * kWholeBox);
      if (!inside(at)) {
        continue;
      }
      const CurveParameters p = shape.at(at, data_.log_first);
      const LinearFit fit = fit_linear(data_, shape, p);
      if (fit.valid) {
        draws_[shape_number].push_back({.p = p});
        log_weights.push_back(fit.log_evidence + std::log(shape.published / proposal.density(at)));
      }
    }
  }

  CurveData data_;
  double last_x_, centre_, range_, least_;
  std::vector<std::vector<Draw>> draws_;  ///< by shape
};

}  // namespace

std::vector<CurvePrediction> predict_curves(std::span<const std::vector<CurvePoint>> curves,
                                            double x, double least) {
  check(!curves.empty(), "no curves to be continued");
  std::vector<CurvePoint> mean = curves.front();
  for (size_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    for (const auto& curve : curves) {
      check(curve.size() == mean.size(), "curves of one shape have {} and {} points", mean.size(),
            curve.size());
      sum += curve[i].y;
    }
    mean[i].y = sum / static_cast<double>(curves.size());
  }
  const LearningCurve shape(mean, least);
  std::vector<CurvePrediction> predictions;
  for (const auto& curve : curves) {
    predictions.push_back(shape.at(x, curve));
  }
  return predictions;
}

}  // namespace espalier::train
