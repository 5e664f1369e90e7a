#pragma once
// Operands of products in 8 bits (GemmArgs::round_a, round_b), rounded as the codes of wire_format.h
// are, but for their scale.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

/// `to` [rows, cols of x], bf16, contiguous: the numbers q, all of which are exact there. Returns
/// the scale s, NaN where an element of x is not finite.
float round_to_fp8(Stream& stream, const Tensor& x, Float8 format, const Tensor& to);

}  // namespace espalier::kernels::ESPALIER_ISA
