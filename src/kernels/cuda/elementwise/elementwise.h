#pragma once
// The kernel of element-wise operations. An operation is a structure with
//   bool aligned() const                         its arrays' quads are aligned
//   Loaded load<kWhole>(i, count)                reads elements i … i + count - 1 (count <= 4)
//   void store<kWhole>(i, count, const Loaded&)  computes and writes them
// A thread loads several quads before it uses the first, to keep enough bytes in flight.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

inline constexpr int kQuadsEach = 4;  ///< quads per thread

/// Base of operations that read x and write y.
struct OneToOne {
  Elements x, y;

  bool aligned() const { return has_whole_quads(x) && has_whole_quads(y); }
  using Loaded = RawQuad;
  template <bool kWhole>
  __device__ __forceinline__ RawQuad load(int64_t i, int64_t count) const {
    return load_raw<kWhole>(x, i, count);
  }
};

template <class Operation>
__global__ void __launch_bounds__(256) elementwise(Operation operation, int64_t n, bool aligned) {
  const int64_t step = 4 * int64_t{blockDim.x};
  const int64_t block = kQuadsEach * step;
  const int64_t first = block * blockIdx.x + 4 * threadIdx.x;
  if (aligned && block * (blockIdx.x + 1) <= n) {
    typename Operation::Loaded loaded[kQuadsEach];
#pragma unroll
    for (int j = 0; j < kQuadsEach; ++j) {
      loaded[j] = operation.template load<true>(first + step * j, 4);
    }
#pragma unroll
    for (int j = 0; j < kQuadsEach; ++j) {
      operation.template store<true>(first + step * j, 4, loaded[j]);
    }
    return;
  }
#pragma unroll 1
  for (int64_t i = first; i < n && i < first + block; i += step) {
    const int64_t count = least(4, n - i);
    operation.template store<false>(i, count, operation.template load<false>(i, count));
  }
}

template <class Operation>
void for_each_quad(const char* name, Stream& stream, const Operation& operation, int64_t n) {
  constexpr unsigned kThreads = 256;
  launch(elementwise<Operation>,
         {.name = name, .grid = blocks_for(n, 4 * kQuadsEach * kThreads), .block = kThreads},
         stream, operation, n, operation.aligned());
}

}  // namespace espalier::kernels::ESPALIER_GPU
