#pragma once
// Sums over rows in two steps: at most kParts blocks of rows sum shares; then the shares are added
// in order. The division into parts depends on the rows alone.
#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int64_t kParts = 32;
inline constexpr int64_t kPartRows = 16;  ///< minimum rows of a block

inline int64_t rows_of_part(int64_t rows) { return most(kPartRows, divide_up(rows, kParts)); }

/// out (+)= sum over parts of shares[part * stride + c]
inline void combine_shares(const float* shares, int64_t parts, int64_t stride, const Tensor& out,
                           bool accumulate) {
  constexpr int64_t kColumns = 256;
  const int64_t cols = out.count();
  with_type(out.dtype, [&](auto type) {
    for (int64_t first = 0; first < cols; first += kColumns) {
      const int64_t n = least(kColumns, cols - first);
      auto* total = elements<decltype(type)>(out) + first;
      float sums[kColumns];
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        sums[c] = accumulate ? load(total + c) : 0.0F;
      }
      for (int64_t part = 0; part < parts; ++part) {
        const float* share = shares + part * stride + first;
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) {
          sums[c] += share[c];
        }
      }
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        store(total + c, sums[c]);
      }
    }
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
