#pragma once
// Row-wise normalisation: LayerNorm, and without mean and bias RMSNorm (Zhang and Sennrich, NeurIPS
// 2019).
#include "src/core/tensor.h"

namespace espalier::kernels {

/// LayerNorm: y = (x - mean) rstd * weight + bias by row, rstd = 1 / sqrt(variance + 1e-5).
/// RMSNorm, if bias and mean are empty: y = x rstd * weight, rstd = 1 / sqrt(mean of x² + 1e-5).
/// x fp32 [R, C]; y any; mean, rstd fp32 [R].
struct NormArgs {
  Tensor x, weight, bias, y, mean, rstd;
};

/// dx += gradient of the norm at x; dweight, dbias any [C] likewise (`accumulate`: added, else
/// overwritten). RMSNorm, if mean and dbias are empty. dy any [R, C]; x, dx fp32. With `rounded`,
/// which may be dy, also rounded = dx in that type.
struct NormBackwardArgs {
  Tensor dy, x, weight, mean, rstd, dx, dweight, dbias;
  bool accumulate = false;
  Tensor rounded;  ///< dy's type [R, C], or empty
};

}  // namespace espalier::kernels
