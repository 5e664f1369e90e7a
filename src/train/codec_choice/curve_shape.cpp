#include "src/train/codec_choice/curve_shape.h"

#include <algorithm>
#include <cmath>

namespace espalier::train {
namespace {

double between(double low, double high, double t) { return low + t * (high - low); }
double log_between(double low, double high, double t) { return low * std::pow(high / low, t); }

/// Range of exponents: from almost logarithmic to a decay within a part of the window.
double exponent(double t, double log_first) {
  return log_between(0.02, std::max(4.0, 6 / -log_first), t);
}

/// Range of 1 / scale. The scale ranges from 1 / `low` of the last x down to a part of the first x
/// or of a narrow window.
double rate(double low, double t, double log_first) {
  const double first = std::exp(log_first);
  return log_between(low, std::max(5 / first, 10 / (1 - first)), t);
}

CurveParameters vap_at(const CurveParameters& t, double) {
  return {between(-5, 5, t[0]), between(-2, 2, t[1])};
}
double vap(const CurveParameters& p, double log_u, double log_first) {
  return std::exp(p[0] * std::exp(log_first) * std::expm1(-log_u) + p[1] * log_u);
}

CurveParameters ilog2_at(const CurveParameters& t, double) {
  return {log_between(0.05, 20, t[0]), 0};
}
double ilog2(const CurveParameters& p, double log_u, double log_first) {
  return 1 / (p[0] + log_u - log_first);
}

CurveParameters weibull_at(const CurveParameters& t, double log_first) {
  return {rate(0.1, t[0], log_first), log_between(0.1, 2, t[1])};
}
/// Normalised by the value at the first x, which may be too small for a double.
double weibull(const CurveParameters& p, double log_u, double log_first) {
  const double log_rate = std::log(p[0]);
  return std::exp(std::exp(p[1] * (log_rate + log_first)) - std::exp(p[1] * (log_rate + log_u)));
}

CurveParameters pow3_at(const CurveParameters& t, double log_first) {
  return {exponent(t[0], log_first), 0};
}
double pow3(const CurveParameters& p, double log_u, double log_first) {
  return std::exp(-p[0] * (log_u - log_first));
}

/// The first parameter is (first x + b / a) / last x.
CurveParameters pow4_at(const CurveParameters& t, double log_first) {
  return {log_between(0.05 * std::exp(log_first), 10, t[0]), exponent(t[1], log_first)};
}
double pow4(const CurveParameters& p, double log_u, double log_first) {
  const double first = std::exp(log_first);
  return std::pow((std::exp(log_u) - first + p[0]) / p[0], -p[1]);
}

/// The parameter is a / (a ln(last x) + b) in the published letters, limited to the domain of the
/// logarithm. Its sign selects the curve or its negative.
CurveParameters loglog_at(const CurveParameters& t, double log_first) {
  return {between(-0.999, 0.999, t[0]) / -log_first, 0};
}
double loglog(const CurveParameters& p, double log_u, double) {
  return std::copysign(std::log1p(std::abs(p[0]) * log_u), p[0] * log_u);
}

CurveParameters mmf_at(const CurveParameters& t, double log_first) {
  return {rate(0.5, t[0], log_first), exponent(t[1], log_first)};
}
/// Normalised by the value at the first x.
double mmf(const CurveParameters& p, double log_u, double log_first) {
  const double log_rate = std::log(p[0]);
  return (1 + std::exp(p[1] * (log_rate + log_first))) / (1 + std::exp(p[1] * (log_rate + log_u)));
}

/// The sign of the exponent selects a curve that rises from 0 or falls to 0.
CurveParameters hill3_at(const CurveParameters& t, double log_first) {
  return {rate(0.5, t[0], log_first), between(-3, 3, t[1])};
}

constexpr std::array kShapes{
    CurveShape{"vap", 1, CurveLink::scaled, 2, vap_at, vap},
    CurveShape{"ilog2", 1, CurveLink::affine, 1, ilog2_at, ilog2},
    CurveShape{"weibull, janoschek, exp4", 3, CurveLink::affine, 2, weibull_at, weibull},
    CurveShape{"pow3", 1, CurveLink::affine, 1, pow3_at, pow3},
    CurveShape{"pow4", 1, CurveLink::affine, 2, pow4_at, pow4},
    CurveShape{"loglog", 1, CurveLink::added, 1, loglog_at, loglog},
    CurveShape{"mmf", 1, CurveLink::affine, 2, mmf_at, mmf},
    CurveShape{"hill3, logpower", 2, CurveLink::scaled, 2, hill3_at, mmf},
};

}  // namespace

std::span<const CurveShape> curve_shapes() { return kShapes; }

}  // namespace espalier::train
