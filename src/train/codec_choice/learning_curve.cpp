#include "src/train/codec_choice/learning_curve.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/core/error.h"
#include "src/core/rng.h"

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

}  // namespace

LearningCurve::LearningCurve(std::span<const CurvePoint> points, const CurveOptions& options)
    : least_(options.least), most_(options.most) {
  check_points(points);
  require(options.draws >= 8, "draws are at least 8", options.draws);
  const auto [low, high] = std::ranges::minmax(points, {}, &CurvePoint::y);
  const double largest = std::max(std::abs(low.y), std::abs(high.y));
  last_x_ = points.back().x;
  centre_ = points.back().y;
  // Lower limit of the range: a curve that is constant in all its digits may still change.
  range_ = std::max({high.y - low.y, 1e-4 * largest, 1e-300});
  check(low.y >= least_ && high.y <= most_,
        "points of a learning curve lie in [{}, {}], its bounds are [{}, {}]", low.y, high.y,
        least_, most_);
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
    draw(s, minima[s], options, log_weights);
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
                         const CurveOptions& options, std::vector<double>& log_weights) {
  const CurveShape& shape = curve_shapes()[shape_number];
  const Proposal proposal(data_, shape, minimum);
  const uint64_t key = mix(options.seed, shape_number);
  for (int i = 0; i < options.draws; ++i) {
    const CurveParameters at =
        proposal.draw(key, static_cast<uint64_t>(i), i < options.draws * kWholeBox);
    if (!inside(at)) {
      continue;
    }
    const LinearFit fit = fit_linear(data_, shape, shape.at(at, data_.log_first));
    if (!fit.valid) {
      continue;
    }
    draws_[shape_number].push_back({.fit = fit, .variance = variance_of(fit)});
    log_weights.push_back(fit.log_evidence + std::log(shape.published / proposal.density(at)));
  }
}

double LearningCurve::variance_of(const LinearFit& fit) const {
  return (data_.prior_squares + fit.squares) / (data_.prior_count + data_.count - 2);
}

CurvePrediction LearningCurve::at(double x) const { return predicted(x, {}); }

CurvePrediction LearningCurve::at(double x, std::span<const CurvePoint> other) const {
  check_points(other);
  check(other.size() == data_.z.size(), "curves of one shape have {} and {} points", data_.z.size(),
        other.size());
  CurveData own = data_;
  for (size_t i = 0; i < other.size(); ++i) {
    check(std::abs(std::log(other[i].x / last_x_) - data_.log_u[i]) < 1e-9,
          "point {} of a curve of the same shape has another x, {}", i, other[i].x);
    own.z[i] = (other[i].y - centre_) / range_;
  }
  return predicted(x, own);
}

CurvePrediction LearningCurve::predicted(double x, const Refit& other) const {
  check(std::isfinite(x) && x > 0, "a learning curve is continued to an x above 0, not to {}", x);
  const double log_u = std::log(x / last_x_);
  const auto shapes = curve_shapes();
  CurvePrediction all;
  double mean = 0;
  double second = 0;
  double noise = 0;
  double total = 0;   // weight
  double inside = 0;  // weight of draws within the bounds
  double beyond = 0;  // sum of weight times the exceeded bound
  for (size_t s = 0; s < shapes.size(); ++s) {
    CurveShare share{.names = shapes[s].names};
    double first_moment = 0;
    double second_moment = 0;
    for (Draw draw : draws_[s]) {
      if (other) {
        draw.fit = fit_linear(*other, shapes[s], draw.fit.p);
        draw.variance = variance_of(draw.fit);
      }
      const LinearPrediction p = predict_linear(data_, shapes[s], draw.fit, log_u);
      if (draw.weight == 0 || !draw.fit.valid || !std::isfinite(p.mean)) {
        continue;
      }
      total += draw.weight;
      const double y = centre_ + range_ * p.mean;
      if (y < least_ || y > most_) {
        beyond += draw.weight * std::clamp(y, least_, most_);
        continue;
      }
      share.weight += draw.weight;
      first_moment += draw.weight * p.mean;
      second_moment += draw.weight * (square(p.mean) + draw.variance * (1 + p.spread));
      noise += draw.weight * draw.variance;
    }
    inside += share.weight;
    if (share.weight > 0) {
      const double m = first_moment / share.weight;
      share.mean = centre_ + range_ * m;
      share.deviation = range_ * std::sqrt(std::max(second_moment / share.weight - square(m), 0.0));
      all.shapes.push_back(share);
      mean += first_moment;
      second += second_moment;
    }
  }
  if (inside < kLeastInside * total) {
    all.shapes.clear();
    mean = (beyond / std::max(total - inside, 1e-300) - centre_) / range_;
    second = square(mean);
  } else if (inside > 0) {
    mean /= inside;
    second /= inside;
    noise /= inside;
    for (CurveShare& share : all.shapes) {
      share.weight /= inside;
    }
  }
  if (log_u > 0) {
    const double few = 1 + kFewPoints / static_cast<double>(data_.z.size());
    second += square(kDiscrepancy * few * log_u / -data_.log_first);
  }
  all.mean = centre_ + range_ * mean;
  all.deviation = range_ * std::sqrt(std::max(second - square(mean), 0.0));
  all.noise = range_ * std::sqrt(noise);
  return all;
}

CurvePrediction predict_curve(std::span<const CurvePoint> points, double x,
                              const CurveOptions& options) {
  return LearningCurve(points, options).at(x);
}

std::vector<CurvePrediction> predict_curves(std::span<const std::vector<CurvePoint>> curves,
                                            double x, const CurveOptions& options) {
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
  const LearningCurve shape(mean, options);
  std::vector<CurvePrediction> predictions;
  for (const auto& curve : curves) {
    predictions.push_back(shape.at(x, curve));
  }
  return predictions;
}

}  // namespace espalier::train
