#include "src/kernels/cpu/sparse/tile_kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

SparseKernels sparse_kernels(DType dtype) {
  return dtype == DType::bf16   ? kernels_of<FloatMath, bf16>()
         : dtype == DType::fp16 ? kernels_of<FloatMath, fp16>()
                                : kernels_of<FloatMath, float>();
}

}  // namespace espalier::kernels::ESPALIER_ISA
