#pragma once
// The ways of an unstructured product (sddmm.cu, spmm.cu):
//   by library   cuSPARSE (by_library.h), wherever it takes the product
//   by slabs     of a weight's gradient: dense products whose kept elements are taken; where there is enough
//                to compute, and kept, for tensor cores (estimated)
//   by rows      kernels that go over the kept elements: everything else
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// Bytes of workspace that the sums of a slab take at most.
inline constexpr int64_t kSlabBytes = int64_t{64} << 20;

/// `rows_each`: of a slab. Nothing of the product may be empty.
void sddmm_by_slabs(Stream& stream, const SddmmArgs& args, int64_t rows_each);

}  // namespace espalier::kernels::ESPALIER_GPU
