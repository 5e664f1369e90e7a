#pragma once
// Sums and maxima over the lanes of a warp, and over the threads of a one-dimensional block of
// whole warps. Every thread receives the result. The order of additions depends on the block size
// alone.
#include <cfloat>

#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

inline constexpr unsigned kAllLanes = 0xffffffffU;

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, lanes);
  }
  return value;
}
/// Ignores NaN.
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}
__device__ __forceinline__ int warp_max(int value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, value, lanes);
    value = other > value ? other : value;
  }
  return value;
}
__device__ __forceinline__ int warp_min(int value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, value, lanes);
    value = other < value ? other : value;
  }
  return value;
}

/// Collects `value` of one lane of each warp: lane i of every warp receives that of warp i, or
/// `rest` beyond the last warp.
template <class T>
__device__ __forceinline__ T from_warps(T value, T rest) {
  __shared__ T of_warp[32];
  const unsigned lane = threadIdx.x % 32;
  __syncthreads();  // of_warp may still be in use by the previous call
  if (lane == 0) {
    of_warp[threadIdx.x / 32] = value;
  }
  __syncthreads();
  return lane < blockDim.x / 32 ? of_warp[lane] : rest;
}

template <class T>
__device__ __forceinline__ T block_sum(T value) {
  value = warp_sum(value);
  return blockDim.x == 32 ? value : warp_sum(from_warps(value, T{0}));
}
/// Two sums with the barriers of one.
struct Sums {
  float first = 0, second = 0;

  __device__ __forceinline__ Sums& operator+=(const Sums& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
};
__device__ __forceinline__ Sums warp_sum(Sums sums) {
  return {warp_sum(sums.first), warp_sum(sums.second)};
}
__device__ __forceinline__ Sums block_sum(Sums sums) {
  sums = warp_sum(sums);
  return blockDim.x == 32 ? sums : warp_sum(from_warps(sums, Sums{}));
}

template <class T>
__device__ __forceinline__ T block_max(T value, T least) {
  value = warp_max(value);
  return blockDim.x == 32 ? value : warp_max(from_warps(value, least));
}

/// `threads` in whole warps, at least one, at most `largest` threads.
inline unsigned whole_warps(int64_t threads, int64_t largest) {
  const int64_t whole = divide_up(threads, 32) * 32;
  return static_cast<unsigned>(whole < 32 ? 32 : whole > largest ? largest : whole);
}

/// Threads of a block that processes one row of `quads` quads: about four quads per thread.
inline unsigned threads_for_row(int64_t quads, int64_t largest = 1024) {
  return whole_warps(divide_up(quads, 4), largest);
}

}  // namespace espalier::kernels::ESPALIER_GPU
