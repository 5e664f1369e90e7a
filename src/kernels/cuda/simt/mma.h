#pragma once
// Tensor cores, and copies into shared memory that go on while a kernel computes: PTX's mma.sync,
// ldmatrix and cp.async (compute capability 8.0 and later). <native/simt_mma.h> has them in PTX
// (native/simt_mma.h) or, in tests, for the host.
//
// A matrix lies in the registers of a warp as fragments: plain arrays, of which each lane has a
// part. With g = lane / 4 and t = lane % 4, bf16 or fp16 in pairs (the lower half first), fp32 singly:
//
//   a [16, 16]  a[0]: row g,     columns 2t, 2t + 1     a[2]: row g,     columns 2t + 8, 2t + 9
//               a[1]: row g + 8, columns 2t, 2t + 1     a[3]: row g + 8, columns 2t + 8, 2t + 9
//   b [16, 8]   b[0]: rows 2t, 2t + 1, column g         b[1]: rows 2t + 8, 2t + 9, column g
//   c [16, 8]   c[0], c[1]: row g, columns 2t, 2t + 1   c[2], c[3]: row g + 8, the same columns
//
// So two c side by side, rounded in pairs (pack_halves), are an a: {c0[0,1], c0[2,3], c1[0,1],
// c1[2,3]}.
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix",
// "cp.async".
#include <cstdint>

#include "src/kernels/cuda/device/launch.h"

namespace espalier::kernels::ESPALIER_GPU {

/// c += a b, of halves of this type. Products are exact, sums fp32. All 32 lanes call it together.
template <DType kHalf>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]);

/// Two or four matrices of 8 x 8 halves from shared memory; r[i], of matrix i: row g, columns 2t and
/// 2t + 1. Lane l names where row l % 8 of matrix l / 8 begins (of two matrices: lanes 0 to 15), at
/// 16 bytes. All 32 lanes call it together.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[2], const void* row);
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row);
/// The same with each matrix transposed, r[i]: rows 2t, 2t + 1 of column g, as they are stored.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[2], const void* row);
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row);

/// Copies `bytes` (0 to 16) from global to shared memory and zeros behind them, 16 in all; both
/// addresses at 16 bytes. Returns before it is done: what is there, and at `from`, may be read or
/// changed by nobody before wait_copies.
__device__ __forceinline__ void copy_async(void* shared, const void* from, int bytes = 16);
/// The copies of this thread since the last call become a group; it may be empty.
__device__ __forceinline__ void commit_copies();
/// Waits until at most kLater groups of this thread are under way, the latest. Its copies are then
/// there for this thread; for others after a barrier that both meet afterwards.
template <int kLater>
__device__ __forceinline__ void wait_copies();

/// Both rounded to nearest, ties to even: a register of a fragment, `low` in the lower half.
template <DType kHalf>
__device__ __forceinline__ uint32_t pack_halves(float low, float high);

/// Where a lane's row begins among 16 x 16 elements that are loaded as four matrices.
struct MatrixRow {
  int row, column;
};
/// By columns of 16 rows: of a stored [m][k], a; of b stored [k][n], transposed, two b side by side
/// (r[0, 1], r[2, 3]).
__device__ __forceinline__ MatrixRow down_first(int lane) { return {lane % 16, lane / 16 * 8}; }
/// By rows of 16 columns: of b stored [n][k], two b side by side (r[0, 1], r[2, 3]); of a stored
/// [k][m], transposed, a.
__device__ __forceinline__ MatrixRow across_first(int lane) {
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8};
}

}  // namespace espalier::kernels::ESPALIER_GPU

#include <simt_mma.h>
