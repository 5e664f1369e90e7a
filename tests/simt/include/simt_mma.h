#pragma once
// The interface of src/kernels/cuda/simt/mma.h for the harness: lanes meet
// (tests/simt/tensor_core.h), and copies arrive when a thread waits for them
// (tests/simt/async_copies.h).
#include <type_traits>

#include "tests/simt/tensor_core.h"

namespace espalier::kernels::ESPALIER_GPU {

template <DType kHalf>
using Half = std::conditional_t<kHalf == DType::fp16, fp16, bf16>;

template <DType kHalf>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  simt::LaneProduct product{c, a, b};
  simt::together(simt::multiply_add<Half<kHalf>>, &product);
}

inline void load_matrices(uint32_t (&r)[2], const void* row) {
  simt::LaneMatrices matrices{r, row};
  simt::together(simt::load_matrices<2, false>, &matrices);
}
inline void load_matrices(uint32_t (&r)[4], const void* row) {
  simt::LaneMatrices matrices{r, row};
  simt::together(simt::load_matrices<4, false>, &matrices);
}
inline void load_matrices_transposed(uint32_t (&r)[2], const void* row) {
  simt::LaneMatrices matrices{r, row};
  simt::together(simt::load_matrices<2, true>, &matrices);
}
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  simt::LaneMatrices matrices{r, row};
  simt::together(simt::load_matrices<4, true>, &matrices);
}

inline void copy_async(void* shared, const void* from, int bytes) {
  simt::copy_async(shared, from, bytes);
}
inline void commit_copies() { simt::commit_copies(); }
template <int kLater>
void wait_copies() {
  simt::wait_copies(kLater);
}

template <DType kHalf>
uint32_t pack_halves(float low, float high) {
  return simt::pack_halves<Half<kHalf>>(low, high);
}

}  // namespace espalier::kernels::ESPALIER_GPU
