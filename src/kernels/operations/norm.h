#pragma once
// Row-wise normalisation.
#include "src/core/tensor.h"

namespace espalier::kernels {

/// y = (x - mean) rstd * weight + bias by row, epsilon 1e-5. x fp32 [R, C]; y any; mean, rstd fp32
/// [R].
struct LayerNormArgs {
  Tensor x, weight, bias, y, mean, rstd;
};

/// dx += gradient of LayerNorm at x; dweight, dbias any [C] likewise (`accumulate`: added, else
/// overwritten). dy any [R, C]; x, dx fp32. With `rounded`, which may be dy, also rounded = dx in
/// that type.
struct LayerNormBackwardArgs {
  Tensor dy, x, weight, mean, rstd, dx, dweight, dbias;
  bool accumulate = false;
  Tensor rounded;  ///< dy's type [R, C], or empty
};

/// y = x rstd * weight by row, rstd = 1 / sqrt(mean of x² + 1e-5). x fp32 [R, C]; y any; rstd fp32
/// [R].
/// Source: Zhang and Sennrich, NeurIPS 2019.
struct RmsNormArgs {
  Tensor x, weight, y, rstd;
};

/// dx += gradient of RMSNorm at x, and dweight; otherwise like LayerNormBackwardArgs.
struct RmsNormBackwardArgs {
  Tensor dy, x, weight, rstd, dx, dweight;
  bool accumulate = false;
  Tensor rounded;
};

}  // namespace espalier::kernels
