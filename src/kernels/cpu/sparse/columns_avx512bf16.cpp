#include <immintrin.h>

#include "src/kernels/cpu/sparse/columns.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

alignas(64) constexpr uint8_t kIota[64] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/// A separate zero register: see words_lanes.h.
[[gnu::always_inline]] inline __m512i fresh_zero() {
  __m512i zero = _mm512_setzero_si512();
  asm("" : "+v"(zero));
  return zero;
}

}  // namespace

void list_columns(const ColumnLists& lists, uint8_t* columns) {
  const __m512i iota = _mm512_load_si512(kIota);
  for (int64_t i = 0; i < lists.rows; ++i) {
    const int64_t row = lists.order == nullptr ? i : lists.order[i];
    uint8_t* const begin = columns;
    __m512i positions = iota;
    for (int64_t w = 0; w < lists.words; ++w) {
      const uint64_t word = lists.bits[row * lists.words + w];
      _mm512_storeu_si512(columns, _mm512_mask_compress_epi8(fresh_zero(), word, positions));
      columns += __builtin_popcountll(word);
      positions = _mm512_add_epi8(positions, _mm512_set1_epi8(64));
    }
    columns = lists.stride > 0 ? begin + lists.stride : columns;
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
