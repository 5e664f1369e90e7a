#pragma once
// Row-wise normalisation: LayerNorm, and without mean and bias RMSNorm (Zhang and Sennrich, NeurIPS
// 2019).
#include "src/core/tensor.h"

namespace espalier::kernels {

inline constexpr float kNormEpsilon = 1e-5F;

/// LayerNorm: y = (x - mean) rstd * weight + bias by row, rstd = 1 / sqrt(variance + epsilon).
/// RMSNorm, if bias and mean are empty: y = x rstd * weight, rstd = 1 / sqrt(mean of x² + epsilon).
/// x fp32 [R, C]; y any; mean, rstd fp32 [R].
struct NormArgs {
  Tensor x, weight, bias, y, mean, rstd;
  float epsilon = kNormEpsilon;  ///< positive
};

/// dx += gradient of the norm at x, always; dweight, dbias any [C]: added if `accumulate`, else
/// overwritten. RMSNorm, if mean and dbias are empty. dy any [R, C]; x, dx fp32. With `rounded`,
/// which may be dy, also rounded = dx in that type.
struct NormBackwardArgs {
  Tensor dy, x, weight, mean, rstd, dx, dweight, dbias;
  bool accumulate = false;
  Tensor rounded;  ///< dy's type [R, C], or empty
};

/// RMSNorm of each head of a row: with D = C / heads, y = x rstd * weight over the D columns of a
/// head, rstd = 1 / sqrt(mean of x² + epsilon). x any [R, C], rows may be strided; weight any [D];
/// y of x's type, may be x; rstd fp32 [R · heads].
struct HeadNormArgs {
  Tensor x, weight, y, rstd;
  int64_t heads = 1;
  float epsilon = kNormEpsilon;  ///< positive
};

/// dx = gradient of the norm at x (overwritten; may be dy); dweight any [D] (`accumulate`: added,
/// else overwritten). dy, x (the input of the norm), dx any [R, C], same type, rows may be strided.
struct HeadNormBackwardArgs {
  Tensor dy, x, weight, rstd, dx, dweight;
  int64_t heads = 1;
  bool accumulate = false;
};

}  // namespace espalier::kernels
