// Attention tiles on the matrix unit (Intel AMX): products of 16 x 16 words with 16 x 16 words.
// Rows and words that fill no unit's tile are multiplied by vectors.
#include "src/kernels/cpu/attention/pair_words.h"
#include "src/kernels/cpu/simd/matrix_tiles.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kSide = 16;  ///< rows, columns and words of a unit's tile

/// Columns [j, j + 16) or, with kTwoColumns, [j, j + 32) of rows [i, i + 16), or [i, i + 32).
template <bool kTwoRows, bool kTwoColumns>
void multiply(const TileProduct& t, int64_t i, int64_t j, int64_t steps) {
  constexpr int64_t kWord = sizeof(float);
  const int64_t a_bytes = t.a_row * kWord;
  const int64_t b_bytes = t.b_row * kWord;
  const int64_t c_bytes = t.c_row * kWord;
  const float* a = t.a + i * t.a_row;
  const float* b = t.b + j;
  float* c = t.c + i * t.c_row + j;
  float* below = c + kSide * t.c_row;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (t.accumulate) {
    _tile_loadd(0, c, c_bytes);
    if constexpr (kTwoColumns) {
      _tile_loadd(1, c + kSide, c_bytes);
    }
    if constexpr (kTwoRows) {
      _tile_loadd(2, below, c_bytes);
    }
    if constexpr (kTwoRows && kTwoColumns) {
      _tile_loadd(3, below + kSide, c_bytes);
    }
  }
  for (int64_t step = 0; step < steps; ++step, a += kSide, b += kSide * t.b_row) {
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoColumns) {
      _tile_loadd(7, b + kSide, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoRows) {
      _tile_loadd(5, a + kSide * t.a_row, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kTwoRows && kTwoColumns) {
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_bytes);
  if constexpr (kTwoColumns) {
    _tile_stored(1, c + kSide, c_bytes);
  }
  if constexpr (kTwoRows) {
    _tile_stored(2, below, c_bytes);
  }
  if constexpr (kTwoRows && kTwoColumns) {
    _tile_stored(3, below + kSide, c_bytes);
  }
}

template <bool kTwoRows>
void multiply_rows(const TileProduct& t, int64_t i, int64_t steps) {
  int64_t j = 0;
  for (; j + 2 * kSide <= t.n; j += 2 * kSide) {
    multiply<kTwoRows, true>(t, i, j, steps);
  }
  if (j < t.n) {
    multiply<kTwoRows, false>(t, i, j, steps);
  }
}

void product(const TileProduct& t) {
  const int64_t steps = t.k / kSide;
  const int64_t rows = steps > 0 ? t.m / kSide * kSide : 0;
  int64_t i = 0;
  for (; i + 2 * kSide <= rows; i += 2 * kSide) {
    multiply_rows<true>(t, i, steps);
  }
  if (i < rows) {
    multiply_rows<false>(t, i, steps);
  }
  const auto by_vectors = tile_product<PairProduct>;
  if (const int64_t words = steps * kSide; rows > 0 && words < t.k) {
    TileProduct rest = t;
    rest.m = rows;
    rest.k = t.k - words;
    rest.a = t.a + words;
    rest.b = t.b + words * t.b_row;
    rest.accumulate = true;
    by_vectors(rest);
  }
  if (rows < t.m) {
    TileProduct rest = t;
    rest.m = t.m - rows;
    rest.a = t.a + rows * t.a_row;
    rest.c = t.c + rows * t.c_row;
    by_vectors(rest);
  }
}

/// [keys, 16 words]: squares of words are transposed, because the unit reads rows of words.
TileWords along_queries(const TileValues& tile, float* words) {
  static_assert(kQueryTile == 2 * kSide && kLanes == kSide);
  for (int64_t j = 0; j < tile.keys; j += kSide) {
    Vector square[kSide];
    for (int64_t k = 0; k < kSide; ++k) {
      square[k] = 2 * k < tile.queries
                      ? __builtin_bit_cast(Vector, pairs_of_queries(tile, 2 * k, j))
                      : Vector{};
    }
    transpose(square);
    for (int64_t key = 0; key < kSide; ++key) {
      write_vector(words + (j + key) * kSide, square[key]);
    }
  }
  return {.words = words, .row = kSide, .col = 1};
}

constexpr TileMath kPairMath{.elements = 2,
                             .product = product,
                             .along_keys = pairs_along_keys,
                             .along_queries = along_queries,
                             .enter = configure_tiles,
                             .leave = release_tiles};

}  // namespace

const TileMath* pair_math() { return &kPairMath; }

}  // namespace espalier::kernels::ESPALIER_ISA
