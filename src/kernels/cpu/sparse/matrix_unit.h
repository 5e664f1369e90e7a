#pragma once
// Sparse products in bf16 on the matrix unit of a CPU (Intel AMX). Pieces of W are expanded into
// dense tiles in the cache; the unit multiplies them with tiles of packed activations. It spends
// 1 / f of the arithmetic that the kept elements need, at 16 times the peak rate of fp32 vectors.
//
//   y = x Wᵀ      tiles of yᵀ: W (rows) times xᵀ
//   dx = dy W     tiles of dx: dy times W (pairs of rows)
//   dW = dyᵀ x    tiles of dW: dyᵀ times x; their kept elements are gathered
//
// The unit multiplies a left tile, 16 rows of 32 deep, with a right one, 16 pairs of depth of 16
// columns each, and adds to a tile of 16 x 16 fp32 sums. Each sum has one fixed order, whatever
// the number of threads. Subnormal operands and sums count as zero.
//
// Cost per 512 elements of W, kept or not, and 256 tokens: 16 multiplications of tiles, 93 ns at
// 2.7 GHz, or 420 ns where the processor throttles them; expansion, 20 ns. Memory: the packed
// activations, and per thread up to 0.8 MB of W and of sums. With KeptForms: the bits and 4 bytes
// for each 64 elements, shared by the three products if all are on the unit.
//
// CMake chooses one of two implementations: none (matrix_unit_plain.cpp), or matrix_unit_amx.cpp.
#include "src/kernels/cpu/sparse/band.h"
#include "src/kernels/cpu/sparse/tile.h"
#include "src/kernels/operations/sparse.h"

namespace espalier::kernels::ESPALIER_ISA {

/// Whether products of this matrix with `tokens` rows of activations use the unit: in bf16, from a
/// density of 0.15 on. If not, the calls below must not be made.
bool uses_matrix_unit(const SparseMatrix& weight, DType activations, int64_t tokens);

/// y = x Wᵀ (TileUse::product) or dx = dy W (transposed). `x` has tokens, `epilogue.out` columns.
void matrix_unit_product(Stream& stream, const SparseMatrix& weight, TileUse use, const Tensor& x,
                         const Epilogue& epilogue);

void matrix_unit_sddmm(Stream& stream, const SddmmArgs& args);

}  // namespace espalier::kernels::ESPALIER_ISA
