#pragma once
// The dry products with sparse and block matrices.
#include "src/kernels/kernels.h"

namespace espalier::kernels::dry {

void spmm(Stream& stream, const SpmmArgs& args);
void block_spmm(Stream& stream, const BlockSpmmArgs& args);
void spmm_transposed(Stream& stream, const SpmmTransposedArgs& args);
void block_spmm_transposed(Stream& stream, const BlockSpmmTransposedArgs& args);
void sddmm(Stream& stream, const SddmmArgs& args);
void block_sddmm(Stream& stream, const BlockSddmmArgs& args);

}  // namespace espalier::kernels::dry
