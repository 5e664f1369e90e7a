#pragma once
// Implementations of an unstructured product (sddmm.cu, spmm.cu):
//   by library   cuSPARSE (by_library.h), wherever it supports the product
//   by slabs     gradient of a weight only: dense products, then a copy of the kept elements.
//                Used if an estimate finds enough work and kept elements for tensor cores
//   by rows      kernels that iterate over the kept elements: everything else
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Upper bound of the bytes of workspace for the sums of a slab.
inline constexpr int64_t kSlabBytes = int64_t{64} << 20;

/// `rows_each`: rows of a slab. No extent of the product may be 0.
void sddmm_by_slabs(Stream& stream, const SddmmArgs& args, int64_t rows_each);

}  // namespace espalier::kernels::ESPALIER_GPU
