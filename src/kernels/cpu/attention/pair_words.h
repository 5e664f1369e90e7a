#pragma once
// Words of two bf16 numbers, for instruction sets that multiply them. Numbers of a tile are rounded
// to nearest; their products are exact and summed in fp32. Private to this folder.
#if defined(__AVX512BF16__)
#include <immintrin.h>

#include "src/kernels/cpu/attention/tile.h"

namespace espalier::kernels::ESPALIER_ISA {

struct PairProduct {
  [[gnu::always_inline]] static Vector add(Vector sum, float word, Vector b) {
    return __builtin_bit_cast(
        Vector, _mm512_dpbf16_ps(__builtin_bit_cast(__m512, sum), __builtin_bit_cast(__m512bh, b),
                                 __builtin_bit_cast(__m512bh, _mm512_set1_ps(word))));
  }
};

/// 16 numbers of `low`, then 16 of `high`.
[[gnu::always_inline]] inline __m512i rounded(__m512 low, __m512 high) {
  return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high, low));
}

/// Words beyond the keys, up to a whole vector, are written; their contents are undefined.
inline TileWords pairs_along_keys(const TileValues& tile, float* words) {
  for (int64_t i = 0; i < tile.queries; ++i) {
    const float* row = tile.values + i * kKeyTile;
    for (int64_t j = 0; j < tile.keys; j += 2 * kLanes) {
      const __m512i pairs = rounded(_mm512_loadu_ps(row + j), _mm512_loadu_ps(row + j + kLanes));
      _mm512_storeu_si512(words + i * kKeyTile + j / 2, pairs);
    }
  }
  return {.words = words, .row = kKeyTile, .col = 1};
}

/// Words of queries i and i + 1, for 16 keys from j on. An odd last query is paired with zeros.
[[gnu::always_inline]] inline __m512i pairs_of_queries(const TileValues& tile, int64_t i,
                                                       int64_t j) {
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const float* row = tile.values + i * kKeyTile + j;
  const __m512 next = i + 1 == tile.queries ? _mm512_setzero_ps() : _mm512_loadu_ps(row + kKeyTile);
  return _mm512_permutexvar_epi16(interleave, rounded(_mm512_loadu_ps(row), next));
}

}  // namespace espalier::kernels::ESPALIER_ISA
#endif
