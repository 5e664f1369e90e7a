#pragma once
// Operands of products in 8 bits (GemmArgs::round_a, round_b): rounded like the fp8 codes of
// wire_format.h, but with another scale.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

/// `to` [rows, cols of x], bf16 or fp32, contiguous: receives the numbers q, which are exact in
/// bf16. Returns the scale s; NaN if an element of x is not finite.
float round_to_fp8(Stream& stream, const Tensor& x, Float8 format, const Tensor& to);

}  // namespace espalier::kernels::ESPALIER_ISA
