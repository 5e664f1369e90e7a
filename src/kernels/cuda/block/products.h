#pragma once
// Products with blocks take one of two ways:
//   on tensor cores (spmm.cu, sddmm.cu): inputs bf16 or fp16, extents of blocks multiples of 16
//   up to 1,024, rows of inputs from addresses of 16 bytes on, and so rows of values where those are
//   an input (their number of columns is a multiple of 8); the sum ends with a piece of 16 bytes
//   (of the transposed product: the number of rows is a multiple of 8, too);
//   row by row (sparse/spmm.cu, sparse/sddmm.cu), as the products with single elements: everything else.
#include "src/kernels/cuda/block/operands.h"

namespace espalier::kernels::ESPALIER_GPU {

void block_spmm_by_rows(Stream& stream, const BlockSpmmArgs& args);
void block_spmm_transposed_by_rows(Stream& stream, const BlockSpmmTransposedArgs& args);
void block_sddmm_by_rows(Stream& stream, const BlockSddmmArgs& args);

/// Halves whose rows begin at 16 bytes.
inline bool in_pieces(const Tensor& t) {
  return t.dtype != DType::fp32 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0 &&
         t.stride % 8 == 0;
}
/// Blocks of a size that tiles take.
inline bool in_tiles(const BlockMatrix& weight) {
  return weight.height % 16 == 0 && weight.width % 16 == 0 &&
         weight.height <= Gather::kMostExtent && weight.width <= Gather::kMostExtent;
}
/// The values of each row of each row of blocks begin at 16 bytes.
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
/// Calls `with` with the HalfType of inputs: their products have a kernel for each type.
template <class With>
void with_half(DType type, const With& with) {
  if (type == DType::fp16) {
    with(HalfType<DType::fp16>{});
  } else {
    with(HalfType<DType::bf16>{});
  }
}

/// Rows of `rows` from `first` on, seen from there.
__device__ __forceinline__ Rows rows_from(const Rows& rows, int64_t first) {
  return {rows.data + first * rows.stride, rows.stride, rows.rows - first, rows.columns};
}

}  // namespace espalier::kernels::ESPALIER_GPU
