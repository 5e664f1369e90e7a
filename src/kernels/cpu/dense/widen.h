#pragma once
// Loops between 16-bit matrices and fp32 (product_widened.h).
#include "src/kernels/cpu/dense/product_widened.h"
#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {

inline void widen(int threads, const Tensor& half, const Tensor& wide) {
  with_type(half.dtype, [&]<class T>(T) {
    for_rows(threads, half.rows(), half.cols(), [&](int64_t row) {
      const T* const from = row_of<T>(half, row);
      auto* const to = row_of<float>(wide, row);
#pragma omp simd
      for (int64_t c = 0; c < half.cols(); ++c) {
        to[c] = load(from + c);
      }
    });
  });
}

inline void narrow(int threads, const Tensor& wide, const Tensor& half, bool accumulate) {
  with_type(half.dtype, [&]<class T>(T) {
    for_rows(threads, half.rows(), half.cols(), [&](int64_t row) {
      T* const to = row_of<T>(half, row);
      const auto* const from = row_of<float>(wide, row);
#pragma omp simd
      for (int64_t c = 0; c < half.cols(); ++c) {
        store(to + c, from[c] + (accumulate ? load(to + c) : 0.0F));
      }
    });
  });
}

inline constexpr cpu::WideningLoops kWideningLoops{.widen = widen, .narrow = narrow};

}  // namespace espalier::kernels::ESPALIER_ISA
