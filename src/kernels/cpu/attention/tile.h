#pragma once
// The arithmetic inside an attention tile: small products of packed panels; sums stay in registers.
// Operands are 32-bit words that hold neighbours along the summed index: one fp32 number, or a pair
// of bf16 numbers if the instruction set multiplies pairs. Sums are fp32, each in the order of its
// words. Compiled once per instruction set (see CMakeLists.txt); private to this folder.
#include <cstdint>

#include "src/kernels/cpu/simd/registers.h"
#include "src/kernels/cpu/simd/vector.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int64_t kQueryTile = 32;
inline constexpr int64_t kKeyTile = 128;
inline constexpr int64_t kTile = kQueryTile * kKeyTile;

/// c [M, N] (+)= a [M, K] b [K, N], c fp32, K counted in words. Word (i, k) of a is a[i * a_row + k
/// * a_col], so a transposed panel costs nothing. b and c have contiguous rows. N is a multiple of
/// kLanes.
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

/// A tile [queries, keys] of fp32 numbers, rows kKeyTile apart.
struct TileValues {
  int64_t queries, keys;
  const float* values;
};

/// First operand of a TileProduct: word (i, k) is words[i * row + k * col].
struct TileWords {
  const float* words;
  int64_t row, col;
};

/// Arithmetic of tiles in one precision.
struct TileMath {
  int64_t elements;  ///< in a word
  void (*product)(const TileProduct&);
  /// The tile as words along the keys (rows are queries) or along the queries (rows are keys). They
  /// are in `words` (as large as a tile) or in place.
  TileWords (*along_keys)(const TileValues&, float* words);
  TileWords (*along_queries)(const TileValues&, float* words);
  /// A thread calls the first before its products, and the second after them. Null: not needed.
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;
};

/// A thread's time between `enter` and `leave`.
class TileSession {
 public:
  explicit TileSession(const TileMath& math) : math_(math) {
    if (math_.enter != nullptr) {
      math_.enter();
    }
  }
  ~TileSession() {
    if (math_.leave != nullptr) {
      math_.leave();
    }
  }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  const TileMath& math_;
};

/// Arithmetic with pairs of bf16; null if the instruction set has no product for them.
const TileMath* pair_math();

/// Rows x Vectors accumulators stay in registers for the whole inner loop.
template <class Product, int Rows, int Vectors>
[[gnu::always_inline]] inline void tile_block(const TileProduct& t, int64_t i, int64_t j) {
  Vector sum[Rows][Vectors];
  const float* a = t.a + i * t.a_row;
  const float* b = t.b + j;
  float* c = t.c + i * t.c_row + j;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      sum[r][v] = t.accumulate ? read_vector(c + r * t.c_row + v * kLanes) : Vector{};
    }
  }
  for (int64_t k = 0; k < t.k; ++k, a += t.a_col, b += t.b_row) {
    Vector row[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      row[v] = read_vector(b + v * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const float word = a[r * t.a_row];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        sum[r][v] = Product::add(sum[r][v], word, row[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      write_vector(c + r * t.c_row + v * kLanes, sum[r][v]);
    }
  }
}

template <class Product, int Vectors>
[[gnu::always_inline]] inline void tile_columns(const TileProduct& t, int64_t j) {
  int64_t i = 0;
  for (; i + 4 <= t.m; i += 4) {
    tile_block<Product, 4, Vectors>(t, i, j);
  }
  for (; i < t.m; ++i) {
    tile_block<Product, 1, Vectors>(t, i, j);
  }
}

/// `Product::add(sum, word, b)` adds the product of b and the word, broadcast to all lanes.
template <class Product>
void tile_product(const TileProduct& t) {
  constexpr int kWide = kRegisters == 32 ? 4 : 2;
  int64_t j = 0;
  for (; j + kWide * kLanes <= t.n; j += kWide * kLanes) {
    tile_columns<Product, kWide>(t, j);
  }
  for (; j + 2 * kLanes <= t.n; j += 2 * kLanes) {
    tile_columns<Product, 2>(t, j);
  }
  for (; j < t.n; j += kLanes) {
    tile_columns<Product, 1>(t, j);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
