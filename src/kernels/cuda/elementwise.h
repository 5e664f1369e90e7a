#pragma once
// One kernel for what works element by element. An operation is a structure with
//   Loaded load(i, count)                reads elements i … i + count - 1 (count <= 4)
//   void store(i, count, const Loaded&)  computes and writes them
// A thread loads several quads before it stores the first, so that enough bytes are on their way.
#include "src/kernels/cuda/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

inline constexpr int kQuadsEach = 2;  ///< quads of a thread

template <class Operation>
__global__ void __launch_bounds__(256) elementwise(Operation operation, int64_t n) {
  const int64_t first = 4 * (int64_t{blockIdx.x} * kQuadsEach * blockDim.x + threadIdx.x);
  typename Operation::Loaded loaded[kQuadsEach];
#pragma unroll
  for (int j = 0; j < kQuadsEach; ++j) {
    const int64_t i = first + 4 * int64_t{blockDim.x} * j;
    if (i < n) {
      loaded[j] = operation.load(i, least(4, n - i));
    }
  }
#pragma unroll
  for (int j = 0; j < kQuadsEach; ++j) {
    const int64_t i = first + 4 * int64_t{blockDim.x} * j;
    if (i < n) {
      operation.store(i, least(4, n - i), loaded[j]);
    }
  }
}

template <class Operation>
void for_each_quad(const char* name, Stream& stream, const Operation& operation, int64_t n) {
  constexpr unsigned kThreads = 256;
  launch(elementwise<Operation>,
         {.name = name, .grid = blocks_for(n, 4 * kQuadsEach * kThreads), .block = kThreads},
         stream, operation, n);
}

}  // namespace espalier::kernels::ESPALIER_GPU
