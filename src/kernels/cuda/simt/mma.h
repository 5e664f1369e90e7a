#pragma once
// Tensor-core products and asynchronous copies to shared memory: PTX's mma.sync, ldmatrix and
// cp.async (compute capability 8.0 and later). <native/simt_mma.h> implements them in PTX
// (native/simt_mma.h) or, in tests, for the host.
//
// A warp holds a matrix in registers as fragments: each lane has a part. With g = lane / 4 and t =
// lane % 4, bf16 or fp16 in pairs (the lower half first), fp32 singly:
//
//   a [16, 16]  a[0]: row g,     columns 2t, 2t + 1     a[2]: row g,     columns 2t + 8, 2t + 9
//               a[1]: row g + 8, columns 2t, 2t + 1     a[3]: row g + 8, columns 2t + 8, 2t + 9
//   b [16, 8]   b[0]: rows 2t, 2t + 1, column g         b[1]: rows 2t + 8, 2t + 9, column g
//   c [16, 8]   c[0], c[1]: row g, columns 2t, 2t + 1   c[2], c[3]: row g + 8, the same columns
//
// Two c side by side, rounded in pairs (pack_halves), form an a: {c0[0,1], c0[2,3], c1[0,1],
// c1[2,3]}.
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix",
// "cp.async".
#include <cstdint>

#include "src/kernels/cuda/device/launch.h"

namespace espalier::kernels::ESPALIER_GPU {

/// c += a b, inputs of type kHalf. Products are exact, sums fp32. All 32 lanes call it together.
template <DType kHalf>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]);

/// Loads two or four matrices of 8 x 8 16-bit elements from shared memory; r[i], of matrix i: row
/// g, columns 2t and 2t + 1. Lane l passes the address of row l % 8 of matrix l / 8, aligned to 16
/// bytes (for two matrices: lanes 0 to 15). All 32 lanes call it together.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[2], const void* row);
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row);
/// The same with each matrix transposed; r[i]: rows 2t, 2t + 1 of column g, as stored.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[2], const void* row);
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row);

/// Starts a copy of `bytes` (0 to 16) from global to shared memory, padded with zeros to 16. Both
/// addresses are aligned to 16 bytes. Until wait_copies no thread may read or change the
/// destination, or change the source.
__device__ __forceinline__ void copy_async(void* shared, const void* from, int bytes = 16);
/// Closes a group: the copies of this thread since the last call. A group may be empty.
__device__ __forceinline__ void commit_copies();
/// Waits until at most the kLater latest groups of this thread are in flight. The finished copies
/// are then visible to this thread, and to other threads after a barrier that follows.
template <int kLater>
__device__ __forceinline__ void wait_copies();

/// Rounds both to nearest, ties to even, into one register of a fragment, `low` in the lower half.
template <DType kHalf>
__device__ __forceinline__ uint32_t pack_halves(float low, float high);

/// The start of a lane's row among 16 x 16 elements that are loaded as four matrices.
struct MatrixRow {
  int row, column;
};
/// Order by columns of 16 rows. It yields a from a stored as [m][k], and, with the transposed load,
/// two b side by side (r[0, 1], r[2, 3]) from b stored as [k][n].
__device__ __forceinline__ MatrixRow down_first(int lane) { return {lane % 16, lane / 16 * 8}; }
/// Order by rows of 16 columns. It yields two b side by side (r[0, 1], r[2, 3]) from b stored as
/// [n][k], and, with the transposed load, a from a stored as [k][m].
__device__ __forceinline__ MatrixRow across_first(int lane) {
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8};
}

}  // namespace espalier::kernels::ESPALIER_GPU

#include <simt_mma.h>
