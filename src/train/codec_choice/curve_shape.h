#pragma once
// The shapes of learning curves: the eleven of Domhan, Springenberg, Hutter, "Speeding up automatic
// hyperparameter optimization of deep neural networks by extrapolation of learning curves",
// IJCAI 2015, table 1. They are eight functions:
//
//   vap       exp(a + b/x + c ln x)           pow3      c - a x^-alpha
//   ilog2     c - a / ln x                    pow4      c - (a x + b)^-alpha
//   weibull   alpha - (alpha - beta) exp(-(kappa x)^delta), = janoschek (kappa^delta for kappa)
//             = exp4 (exp(b) for alpha - beta)
//   mmf       alpha - (alpha - beta) / (1 + (kappa x)^delta)
//   hill3     theta x^eta / (kappa^eta + x^eta), = logpower (-c for eta, exp(b) for kappa)
//   loglog    ln(a ln x + b)
//
// Each shape has one or two nonlinear parameters, a level, and at most one amplitude. Level and
// amplitude follow from the data in closed form, so only the nonlinear parameters need a search.
// x enters as u = x / (last x), so the unit of x (steps or seconds) changes nothing. Therefore
// ilog2 has a free unit, 1 / ln(x / s) with s below the first x; the published one has s = 1.
#include <array>
#include <span>
#include <string_view>

namespace espalier::train {

/// How the value v(u) of a shape becomes a curve with level L at u = 1.
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
  int published = 1;  ///< number of published shapes that it covers
  CurveLink link = CurveLink::affine;
  size_t parameters = 1;
  /// Maps the unit square to the box of plausible parameters.
  CurveParameters (*at)(const CurveParameters& square, double log_first) = nullptr;
  double (*value)(const CurveParameters& p, double log_u, double log_first) = nullptr;
};

std::span<const CurveShape> curve_shapes();

}  // namespace espalier::train
