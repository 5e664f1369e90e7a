#include "src/kernels/cpu/sparse/matrix_unit.h"

namespace espalier::kernels::ESPALIER_ISA {

bool uses_matrix_unit(const SparseMatrix& /*weight*/, DType /*activations*/, int64_t /*tokens*/) {
  return false;
}

void matrix_unit_product(Stream& /*stream*/, const SparseMatrix& /*weight*/, TileUse /*use*/,
                         const Tensor& /*x*/, const Epilogue& /*epilogue*/) {}

void matrix_unit_sddmm(Stream& /*stream*/, const SddmmArgs& /*args*/) {}

}  // namespace espalier::kernels::ESPALIER_ISA
