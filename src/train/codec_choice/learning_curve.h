#pragma once
// Extrapolates a learning curve: predicts the mean and standard deviation of y at a later x from
// points (x, y). x: steps or seconds since the start of training; y: validation loss or accuracy.
//
// Method: a mixture over eleven published shapes (curve_shape.h). It replaces the sampler of Domhan
// et al. (IJCAI 2015) and the network of Klein et al. (ICLR 2017), which take seconds to minutes.
//   1. Fit each shape by weighted least squares. Point i of n has weight 10^(i/n) (Domhan).
//   2. Draw the shape's nonlinear parameters: two thirds around the fit (Laplace's approximation,
//      Student's t with 4 degrees of freedom), one third from the whole box.
//   3. Weigh each draw by posterior / proposal. With W, the weight over all draws of all shapes:
//
//   mean        = sum of W mean_i
//   deviation^2 = sum of W ((mean_i - mean)^2 + variance_i)
//
// The deviation contains the disagreement of shapes, the uncertainty of parameters, and the noise
// of a single observation. Beyond the last x it also contains 0.15 (1 + 4/n) of the mean slope
// against ln x, because real curves follow no family exactly (the constant is fitted on real
// curves: benchmarks/quality/learning_curve.sh). The mean weight of a shape's draws is its
// evidence, so shapes with more parameters gain no weight by fitting noise. Residuals with
// autocorrelation r (the shape does not fit exactly) reduce the number of points by (1 - r) / (1 +
// r).
//
// Losses and accuracies need no transformation: amplitudes take either sign, and shapes without an
// amplitude (loglog, hill3) exist in both directions. Results do not depend on the unit of x, nor
// on the unit of y except for loglog. With few points the priors dominate: they expect y to change
// by about its range so far until x doubles. Random numbers come from Philox, so equal points give
// equal bits.
// Cost: about 1.5 ms for 30 points.
// Errors: Failure for fewer than 3 points, x that is not ascending or not above 0, and non-finite
// numbers.
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "src/train/codec_choice/curve_fit.h"

namespace espalier::train {

struct CurvePoint {
  double x = 0, y = 0;
};

struct CurveOptions {
  int draws = 160;  ///< parameter draws per shape
  uint64_t seed = 1;
  /// Bounds of y (a loss is at least 0, an accuracy at most 1). The mixture at x excludes draws
  /// that exceed a bound at x; if all draws exceed it, the prediction is the bound.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

/// The prediction of one shape.
struct CurveShare {
  std::string_view names;  ///< published names of the shape
  double weight = 0;       ///< in the mixture; the sum over shapes is 1
  double mean = 0, deviation = 0;
};

struct CurvePrediction {
  double mean = 0, deviation = 0;
  double noise = 0;  ///< part of the deviation that remains with a perfect fit
  std::vector<CurveShare> shapes;
};

class LearningCurve {
 public:
  explicit LearningCurve(std::span<const CurvePoint> points, const CurveOptions& options = {});
  /// Prediction at x > 0; intended for x beyond the last point.
  [[nodiscard]] CurvePrediction at(double x) const;
  /// Prediction for another curve with points at the same x and the same shape: only level and
  /// amplitude are fitted to `other`.
  [[nodiscard]] CurvePrediction at(double x, std::span<const CurvePoint> other) const;

 private:
  struct Draw {
    LinearFit fit;
    double weight = 0;    ///< the sum over all draws of all shapes is 1
    double variance = 0;  ///< s^2, including the factor of Student's t
  };
  using Refit = std::optional<CurveData>;  ///< points of the other curve; none: data_

  [[nodiscard]] CurvePrediction predicted(double x, const Refit& other) const;
  [[nodiscard]] double variance_of(const LinearFit& fit) const;

  void draw(size_t shape, const CurveMinimum& minimum, const CurveOptions& options,
            std::vector<double>& log_weights);

  CurveData data_;
  double last_x_ = 0, centre_ = 0, range_ = 1;
  double least_, most_;
  std::vector<std::vector<Draw>> draws_;  ///< by shape
};

/// LearningCurve(points, options).at(x)
CurvePrediction predict_curve(std::span<const CurvePoint> points, double x,
                              const CurveOptions& options = {});

/// Predicts curves that start from one state and see the same batches, as codec trials do. All have
/// the same x. The nonlinear shape is fitted to their mean; level and amplitude are fitted per
/// curve, so noise of a few points does not select a different shape for each curve.
std::vector<CurvePrediction> predict_curves(std::span<const std::vector<CurvePoint>> curves,
                                            double x, const CurveOptions& options = {});

}  // namespace espalier::train
