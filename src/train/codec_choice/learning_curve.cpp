#include "src/train/codec_choice/learning_curve.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/core/error.h"
#include "src/core/rng.h"
#include "src/train/codec_choice/curve_fit.h"

namespace espalier::train {
namespace {

// All constants are in units of the range of y.
constexpr double kPriorNoise = 0.03;  // standard deviation; counts as one point
constexpr double kLeastNoise = 1e-6;
constexpr double kFitted = 3;          // number of fitted parameters
constexpr double kLevelPrior = 3;      // standard deviation of the level at the last x
constexpr double kDiscrepancy = 0.15;  // deviation of real curves from all shapes, as a part of the
constexpr double kFewPoints = 4;       // mean slope against ln x, times 1 + this / points
constexpr int kRounds = 6;
constexpr int kDraws = 160;  // of parameters, per shape
constexpr uint64_t kSeed = 1;
constexpr double kLeastInside = 1e-3;     // weight of draws that keep to the bounds
constexpr double kSmallestCount = 2;      // least effective number of points
constexpr double kWholeBox = 1.0 / 3;     // part of the draws
constexpr double kDegrees = 4;            // of the proposal's t
constexpr double kProposalStretch = 1.3;  // in standard deviations

double square(double x) { return x * x; }

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
  const double measured = std::max(squares / std::max(free, 1.0), square(kLeastNoise));
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
  LearningCurve(std::span<const CurvePoint> points, double least);
  /// Prediction at `x` for `points`: only level and amplitude of each draw are fitted to them.
  [[nodiscard]] CurvePrediction at(double x, std::span<const CurvePoint> points) const;

 private:
  struct Draw {
    CurveParameters p;
    double weight = 0;  ///< the sum over all draws of all shapes is 1
  };

  [[nodiscard]] CurveData with_values_of(std::span<const CurvePoint> points) const;
  /// s^2, including the factor of Student's t.
  [[nodiscard]] double variance_of(const LinearFit& fit) const;
  void draw(size_t shape, const CurveMinimum& minimum, std::vector<double>& log_weights);

  CurveData data_;
  double last_x_, centre_, range_, least_;
  std::vector<std::vector<Draw>> draws_;  ///< by shape
};

LearningCurve::LearningCurve(std::span<const CurvePoint> points, double least) : least_(least) {
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
  // Repeat while the noise estimate falls: priors are in units of the noise, so an estimate that is
  // too large distorts the first fits.
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

void LearningCurve::draw(size_t shape_number, const CurveMinimum& minimum,
                         std::vector<double>& log_weights) {
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

double LearningCurve::variance_of(const LinearFit& fit) const {
  return (data_.prior_squares + fit.squares) / (data_.prior_count + data_.count - 2);
}

CurveData LearningCurve::with_values_of(std::span<const CurvePoint> points) const {
  check_points(points);
  CurveData data = data_;
  for (size_t i = 0; i < points.size(); ++i) {
    check(std::abs(std::log(points[i].x / last_x_) - data_.log_u[i]) < 1e-9,
          "point {} of a curve of the same shape has another x, {}", i, points[i].x);
    data.z[i] = (points[i].y - centre_) / range_;
  }
  return data;
}

CurvePrediction LearningCurve::at(double x, std::span<const CurvePoint> points) const {
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
  if (inside < kLeastInside * total) {
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
