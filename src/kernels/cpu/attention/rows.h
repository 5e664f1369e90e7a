#pragma once
// Sums and maxima of the rows of an attention tile, in two steps: reduce each row to kPad parts
// (lane l of every block of kPad elements), then the parts of many rows together, by transposed
// squares. A sum adds its elements in this order for every instruction set.
#include "src/kernels/cpu/attention/panels.h"

namespace espalier::kernels::ESPALIER_ISA {

struct Sum {
  static constexpr float kStart = 0.0F;
  [[gnu::always_inline]] static Vector fold(Vector a, Vector b) { return a + b; }
};

/// Maximum; ignores NaN.
struct Greater {
  static constexpr float kStart = -__builtin_inff();
  [[gnu::always_inline]] static Vector fold(Vector a, Vector b) { return b > a ? b : a; }
};

/// parts[l] = the fold of row[l], row[kPad + l]..., up to `end`, a multiple of kPad.
template <class Fold>
[[gnu::always_inline]] inline void fold_blocks(const float* row, int64_t end, float* parts, Fold) {
  constexpr int kVectors = kPad / kLanes;
  Vector folded[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    folded[v] = Fold::kStart - Vector{};
  }
  for (int64_t j = 0; j < end; j += kPad) {
    for (int v = 0; v < kVectors; ++v) {
      folded[v] = Fold::fold(folded[v], read_vector(row + j + v * kLanes));
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    write_vector(parts + v * kLanes, folded[v]);
  }
}

/// totals[i] = the fold of totals[i] and parts[i][0..kPad), in order, for all rows of a tile.
template <class Fold>
[[gnu::always_inline]] inline void fold_rows(const float* parts, float* totals, Fold) {
  for (int64_t i = 0; i < kQueryTile; i += kLanes) {
    Vector total = read_vector(totals + i);
    for (int64_t first = 0; first < kPad; first += kLanes) {
      Vector square[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        square[r] = read_vector(parts + (i + r) * kPad + first);
      }
      transpose(square);
      for (const Vector part : square) {
        total = Fold::fold(total, part);
      }
    }
    write_vector(totals + i, total);
  }
}

/// Sets the elements before `first` in its block to minus infinity. Returns the block's start.
[[gnu::always_inline]] inline int64_t mask_first(float* row, int64_t first) {
  const int64_t start = first / kPad * kPad;
  for (int64_t l = start; l < first; ++l) {
    row[l] = -__builtin_inff();
  }
  return start;
}

/// Sets the elements of the last block that a row must not see to minus infinity.
[[gnu::always_inline]] inline void mask_last(float* row, int64_t visible) {
  float* block = row + padded(visible) - kPad;
  const auto seen = static_cast<int32_t>(visible - (padded(visible) - kPad));
  for (int32_t l = 0; l < kPad; ++l) {
    block[l] = l < seen ? block[l] : -__builtin_inff();
  }
}

/// sums[t] = the dot product of rows t of a and b, which are `stride` apart.
template <class T>
void dot_rows(const Head& head, const T* a, const T* b, int64_t stride, float* sums) {
  if (head.elements == 1) {
    for (int64_t t = 0; t < head.tokens; ++t) {
      float sum = 0;
      for (int64_t d = 0; d < head.width; ++d) {
        sum += load(a + t * stride + d) * load(b + t * stride + d);
      }
      sums[t] = sum;
    }
    return;
  }
  for (int64_t t = 0; t < head.padded_tokens; t += kLanes) {
    Vector square[kLanes] = {};
    const int64_t rows = least(kLanes, head.tokens - t);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = (t + i) * stride;
      for (int64_t d = 0; d < head.width; d += kLanes) {
        const int64_t n = least(kLanes, head.width - d);
        square[i] += read_vector(a + row + d, n) * read_vector(b + row + d, n);
      }
    }
    transpose(square);
    Vector sum{};
    for (const Vector part : square) {
      sum += part;
    }
    write_vector(sums + t, sum);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
