#pragma once
// A separate bias kernel, for products whose bias is not fused (blas_cublaslt.cpp).
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// c [m, n] += bias [n], c of any type, in place. Rounds once more than a fused bias.
void add_bias(Stream& stream, const Tensor& c, const float* bias);

}  // namespace espalier::kernels::ESPALIER_GPU
