#pragma once
// LayerNorm and RMSNorm (not kCentred), element by element (formulas in operations/norm.h).
#include "src/kernels/rules/shared.h"

namespace espalier::kernels::rules {

/// y of an element.
template <bool kCentred>
ESPALIER_RULE float norm_value(float x, float mean, float rstd, float weight, float bias) {
  return kCentred ? (x - mean) * rstd * weight + bias : x * rstd * weight;
}
ESPALIER_RULE float normalised(float x, float mean, float rstd) { return (x - mean) * rstd; }
/// The gradient at x. `centre`, `slope`: means over the row of g = dy weight (RMSNorm: 0), and of g
/// times the normalised x.
ESPALIER_RULE float norm_gradient(float dy, float weight, float normalised, float rstd,
                                  float centre, float slope) {
  return rstd * (dy * weight - centre - normalised * slope);
}

}  // namespace espalier::kernels::rules
