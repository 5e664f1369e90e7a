#pragma once
// The arithmetic inside an attention tile: small products of packed fp32 panels held in vector
// registers, and the exponential. Compiled once an instruction set (see CMakeLists.txt); private to
// this folder.
#include <cstdint>

#include "src/kernels/cpu/vector.h"

namespace espalier::kernels::ESPALIER_ISA {

/// c [M, N] (+)= a [M, K] b [K, N], all fp32. Element (i, k) of a is a[i * a_row + k * a_col], so a
/// transposed panel costs nothing; b and c have contiguous rows. N is a multiple of kLanes.
struct TileProduct {
  int64_t m, n, k;
  const float* a;
  int64_t a_row, a_col;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  bool accumulate;
};

/// Rows x Vectors accumulators stay in registers for the whole inner loop.
template <int Rows, int Vectors>
[[gnu::always_inline]] inline void tile_block(const TileProduct& t, int64_t i, int64_t j) {
  Vector sum[Rows][Vectors];
  const float* a = t.a + i * t.a_row;
  const float* b = t.b + j;
  float* c = t.c + i * t.c_row + j;
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      sum[r][v] =
          t.accumulate ? *reinterpret_cast<const Vector*>(c + r * t.c_row + v * kLanes) : Vector{};
    }
  }
  for (int64_t k = 0; k < t.k; ++k, a += t.a_col, b += t.b_row) {
    Vector row[Vectors];
    for (int v = 0; v < Vectors; ++v) {
      row[v] = *reinterpret_cast<const Vector*>(b + v * kLanes);
    }
    for (int r = 0; r < Rows; ++r) {
      const float x = a[r * t.a_row];
      for (int v = 0; v < Vectors; ++v) {
        sum[r][v] += x * row[v];
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      *reinterpret_cast<Vector*>(c + r * t.c_row + v * kLanes) = sum[r][v];
    }
  }
}

template <int Vectors>
[[gnu::always_inline]] inline void tile_columns(const TileProduct& t, int64_t j) {
  int64_t i = 0;
  for (; i + 4 <= t.m; i += 4) {
    tile_block<4, Vectors>(t, i, j);
  }
  for (; i < t.m; ++i) {
    tile_block<1, Vectors>(t, i, j);
  }
}

inline void tile_product(const TileProduct& t) {
  constexpr int kWide = kLanes == 16 ? 4 : 2;  // 32 registers with AVX-512, 16 before
  int64_t j = 0;
  for (; j + kWide * kLanes <= t.n; j += kWide * kLanes) {
    tile_columns<kWide>(t, j);
  }
  for (; j + 2 * kLanes <= t.n; j += 2 * kLanes) {
    tile_columns<2>(t, j);
  }
  for (; j < t.n; j += kLanes) {
    tile_columns<1>(t, j);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
