#pragma once
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

/// The product of fp16 operands, without epilogues; see product_fp16.h.
void gemm_fp16(Stream& stream, const GemmArgs& args);

}  // namespace espalier::kernels::ESPALIER_ISA
