#pragma once
// A bias on its own: where it cannot come with the product (blas_cublaslt.cpp).
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// c [m, n] += bias [n], any, in place: rounded once more than with the product.
void add_bias(Stream& stream, const Tensor& c, const float* bias);

}  // namespace espalier::kernels::ESPALIER_GPU
