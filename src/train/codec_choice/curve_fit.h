#pragma once
// One shape (curve_shape.h) against the points of one curve, in units without dimension:
// u = x / (last x), z = (y - centre) / range.
//
// Given the nonlinear parameters p, the curve is offset(u) + basis(u) beta with one or two linear
// coefficients (level at u = 1; amplitude). beta ~ N(0, s^2 V) and the noise's variance s^2 ~
// inverse gamma(prior_count / 2, prior_squares / 2) have closed posteriors, so that
//   evidence(p) = |V|^-1/2 |A|^-1/2 (prior_squares + Q)^-(prior_count + n)/2,
//   A = V^-1 + B^T W B,  Q = min over beta of sum w (z - offset - B beta)^2 + beta^T V^-1 beta,
// and a prediction is Student's t. Powers of the likelihood (weights w with sum n) make recent
// points count more, and correlated ones less. Minima of Q over p come from a grid and
// Levenberg-Marquardt steps on the projected residuals ("variable projection": Golub, Pereyra, SIAM
// J. Numer. Anal. 10, 1973). Cost: n exponentials or powers each time a p is tried.
#include <array>
#include <span>
#include <vector>

#include "src/train/codec_choice/curve_shape.h"

namespace espalier::train {

struct CurveData {
  std::vector<double> log_u, z, weight;
  double log_first = 0;      ///< of log_u; the last is 0
  double raw_centre = 0;     ///< centre / range: where y = 0 is
  double inverse_range = 1;  ///< of y
  double count = 0;          ///< n: sum of the weights
  double prior_count = 1, prior_squares = 1e-4;
  double noise = 1e-3;      ///< expected variance: priors of beta in units of s^2
  double level_prior = 3;   ///< standard deviations: level at u = 1,
  double past_prior = 1;    ///< change from the first u to 1,
  double future_prior = 1;  ///< and from u = 1 to u = 2
};

/// What is known of beta, given p.
struct LinearFit {
  bool valid = false;  ///< else p makes no curve: overflow, or flat
  std::array<double, 2> beta{};
  std::array<double, 3> spread{};  ///< A^-1: (0,0), (0,1), (1,1)
  double squares = 0;              ///< Q
  double log_evidence = 0;
  CurveParameters p{};
  double value_at_last = 0, unit = 1;  ///< of the shape's value: basis = (v - v(1)) / unit
};

/// Mean, and variance in units of s^2 without the noise of the observation itself.
struct LinearPrediction {
  double mean = 0, spread = 0;
};

/// `residuals`, if not empty: sqrt(w) (z - curve) for each point, then sqrt of the priors' terms
/// (two numbers).
LinearFit fit_linear(const CurveData& data, const CurveShape& shape, const CurveParameters& p,
                     std::span<double> residuals = {});
LinearPrediction predict_linear(const CurveData& data, const CurveShape& shape,
                                const LinearFit& fit, double log_u);

/// A minimum of Q in the unit square, and J^T J of the residuals there.
struct CurveMinimum {
  CurveParameters square{};
  std::array<double, 3> curvature{};  ///< (0,0), (0,1), (1,1)
  double squares = 0;
};
/// From `start`.
CurveMinimum improve(const CurveData& data, const CurveShape& shape, const CurveParameters& start);
/// The best of a grid and of its best three nodes improved.
CurveMinimum search(const CurveData& data, const CurveShape& shape);

}  // namespace espalier::train
