#pragma once
// The shapes of learning curves: the eleven of Domhan, Springenberg, Hutter, "Speeding up automatic
// hyperparameter optimization of deep neural networks by extrapolation of learning curves",
// IJCAI 2015, table 1, which are eight functions:
//
//   vap       exp(a + b/x + c ln x)           pow3      c - a x^-alpha
//   ilog2     c - a / ln x                    pow4      c - (a x + b)^-alpha
//   weibull   alpha - (alpha - beta) exp(-(kappa x)^delta), = janoschek (kappa^delta for kappa)
//             = exp4 (exp(b) for alpha - beta)
//   mmf       alpha - (alpha - beta) / (1 + (kappa x)^delta)
//   hill3     theta x^eta / (kappa^eta + x^eta), = logpower (-c for eta, exp(b) for kappa)
//   loglog    ln(a ln x + b)
//
// Given its one or two nonlinear parameters each is a level and at most one amplitude away from the
// data, so only those one or two need a search. x enters as u = x / (last x): whether x counts
// steps or seconds changes nothing. For this ilog2 has a free unit, 1 / ln(x / s), s below the
// first x; the published one has s = 1.
#include <array>
#include <span>
#include <string_view>

namespace espalier::train {

/// How a shape's value v(u) becomes a curve with level L at u = 1.
enum class CurveLink {
  affine,  ///< L + D (v(u) - v(1)): the amplitude D is free, either sign
  scaled,  ///< L v(u) / v(1)
  added,   ///< L + v(u), v(1) = 0
};

/// Nonlinear parameters; a shape with one leaves the second 0.
using CurveParameters = std::array<double, 2>;

/// One function of u = x / (last x), as exp(log_u); log_first = ln(first x / last x) < 0.
struct CurveShape {
  std::string_view names;
  int published = 1;  ///< how many of the eleven it is
  CurveLink link = CurveLink::affine;
  size_t parameters = 1;
  /// From the unit square to the box of sensible parameters.
  CurveParameters (*at)(const CurveParameters& square, double log_first) = nullptr;
  double (*value)(const CurveParameters& p, double log_u, double log_first) = nullptr;
};

std::span<const CurveShape> curve_shapes();

}  // namespace espalier::train
