#pragma once
// Fits one shape (curve_shape.h) to the points of one curve, in dimensionless units:
// u = x / (last x), z = (y - centre) / range.
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
#include <array>
#include <span>
#include <vector>

#include "src/train/codec_choice/curve_shape.h"

namespace espalier::train {

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

/// `residuals`, if not empty: sqrt(w) (z - curve) of each point, then the square roots of the two
/// prior terms.
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
/// Descends from `start`.
CurveMinimum improve(const CurveData& data, const CurveShape& shape, const CurveParameters& start);
/// Evaluates a grid, descends from its best three nodes, and returns the best result.
CurveMinimum search(const CurveData& data, const CurveShape& shape);

}  // namespace espalier::train
