#pragma once
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

/// The product alone, of fp16 operands; see product_fp16.h.
void gemm_fp16(Stream& stream, const GemmArgs& args);

}  // namespace espalier::kernels::ESPALIER_ISA
