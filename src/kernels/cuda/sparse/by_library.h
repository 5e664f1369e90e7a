#pragma once
// Chooses the implementation of an unstructured sparse product. cuSPARSE (library.h) is tried if
// the matrix has its lists (Csr), the product is not empty, and its arrays are aligned to 16 bytes.
// Our own kernels (spmm.cu, sddmm.cu) compute all other products, and those that cuSPARSE refuses.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Enqueues the product with cuSPARSE. Returns false, with outputs unchanged, if it does not.
bool by_library(Stream& stream, const SpmmArgs& args);
bool by_library(Stream& stream, const SpmmTransposedArgs& args);
bool by_library(Stream& stream, const SddmmArgs& args);

}  // namespace espalier::kernels::ESPALIER_GPU
