#pragma once
// Extrapolates a learning curve: predicts the mean and standard deviation of y at a later x from
// points (x, y). x: steps or seconds since the start of training; y: validation loss or accuracy.
//
// Method: a mixture over eleven published shapes (curve_shape.h). It replaces the sampler of Domhan
// et al. (IJCAI 2015) and the network of Klein et al. (ICLR 2017), which take seconds to minutes.
//   1. Fit each shape by weighted least squares. Point i of n has weight 10^(i/n) (Domhan).
//   2. Draw the shape's nonlinear parameters 160 times: two thirds around the fit (Laplace's
//      approximation, Student's t with 4 degrees of freedom), one third from the whole box.
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
// Amplitudes take either sign, and shapes without an amplitude (loglog, hill3) exist in both
// directions. Results do not depend on the unit of x, nor
// on the unit of y except for loglog. With few points the priors dominate: they expect y to change
// by about its range so far until x doubles. Random numbers come from Philox, so equal points give
// equal bits.
// Cost: about 1.5 ms for 30 points.
// Errors: Failure for fewer than 3 points, x that is not ascending or not above 0, and non-finite
// numbers.
#include <limits>
#include <span>
#include <vector>

namespace espalier::train {

struct CurvePoint {
  double x = 0, y = 0;
};

struct CurvePrediction {
  double mean = 0, deviation = 0;
};

/// Predicts y at x > 0 for curves that start from one state and see the same batches, as codec
/// trials do. All have the same x. The nonlinear shape is fitted to their mean; level and amplitude
/// are fitted per curve, so noise of a few points does not select a different shape for each curve.
/// `least`: lower bound of y (a loss is at least 0). The mixture excludes draws below it at `x`; if
/// all are below, the prediction is the bound.
std::vector<CurvePrediction> predict_curves(
    std::span<const std::vector<CurvePoint>> curves, double x,
    double least = -std::numeric_limits<double>::infinity());

}  // namespace espalier::train
