#pragma once
// Products with blocks have two implementations.
// - Tensor cores (spmm.cu, sddmm.cu). Inputs are bf16 or fp16. Extents of blocks are multiples of
//   16, at most 1,024. Rows of inputs are aligned to 16 bytes; where values are an input, their
//   rows are too (the number of columns is a multiple of 8). The sum ends with a whole piece of 16
//   bytes (in the transposed product the number of rows is also a multiple of 8).
// - Row by row (sparse/spmm.cu, sparse/sddmm.cu), as products with single elements: everything
//   else.
#include "src/kernels/cuda/block/operands.h"

namespace espalier::kernels::ESPALIER_GPU {

void block_spmm_by_rows(Stream& stream, const BlockSpmmArgs& args);
void block_spmm_transposed_by_rows(Stream& stream, const BlockSpmmTransposedArgs& args);
void block_sddmm_by_rows(Stream& stream, const BlockSddmmArgs& args);

/// True for 16-bit elements whose rows begin at multiples of 16 bytes.
inline bool in_pieces(const Tensor& t) {
  return t.dtype != DType::fp32 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0 &&
         t.stride % 8 == 0;
}
/// True if tiles support the extents of the blocks.
inline bool in_tiles(const BlockMatrix& weight) {
  return weight.height % 16 == 0 && weight.width % 16 == 0 && weight.height <= Gather::kMaxExtent &&
         weight.width <= Gather::kMaxExtent;
}
/// True if the values of each row of each row of blocks begin at a multiple of 16 bytes.
inline bool values_in_pieces(const BlockMatrix& weight) {
  return weight.values.dtype != DType::fp32 &&
         reinterpret_cast<uintptr_t>(weight.values.data) % 16 == 0 && weight.cols % 8 == 0;
}

inline Rows rows_of(const Tensor& t) {
  return {static_cast<const uint16_t*>(t.data), t.stride, t.rows(), t.cols()};
}
inline const uint16_t* half_data(const Tensor& t) { return static_cast<const uint16_t*>(t.data); }

template <DType kType>
struct HalfType {
  static constexpr DType value = kType;
};
/// Calls `with` with the HalfType of the inputs: each type has its own kernel.
template <class With>
void with_half(DType type, const With& with) {
  if (type == DType::fp16) {
    with(HalfType<DType::fp16>{});
  } else {
    with(HalfType<DType::bf16>{});
  }
}

/// Rows from `first` on, renumbered from 0.
__device__ __forceinline__ Rows rows_from(const Rows& rows, int64_t first) {
  return {rows.data + first * rows.stride, rows.stride, rows.rows - first, rows.columns};
}

}  // namespace espalier::kernels::ESPALIER_GPU
