#pragma once
// Which of the two computes an unstructured sparse product: cuSPARSE (library.h) is offered
// every one whose matrix has its lists (Csr), that has something to compute, and whose arrays begin
// at 16 bytes; our own kernels (spmm.cu, sddmm.cu) compute the others, and those that it refuses.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Asks cuSPARSE for the product; false: nothing was asked for.
bool by_library(Stream& stream, const SpmmArgs& args);
bool by_library(Stream& stream, const SpmmTransposedArgs& args);
bool by_library(Stream& stream, const SddmmArgs& args);

}  // namespace espalier::kernels::ESPALIER_GPU
