// Eight counters in the 64-bit lanes of a register. A multiply reads only the low half of a lane,
// so high halves are arbitrary until the words are joined at the end.
#include <immintrin.h>

#include "src/kernels/cpu/simd/philox.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

struct Counters {
  __m512i c0, c1, c2, c3;
};

[[gnu::always_inline]] inline __m512i xor3(__m512i a, __m512i b, __m512i c) {
  return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

[[gnu::always_inline]] inline void advance(Counters& c, __m512i key0, __m512i key1) {
  const __m512i p0 = _mm512_mul_epu32(c.c0, _mm512_set1_epi64(0xD2511F53));
  const __m512i p1 = _mm512_mul_epu32(c.c2, _mm512_set1_epi64(0xCD9E8D57));
  c.c0 = xor3(_mm512_srli_epi64(p1, 32), c.c1, key0);
  c.c2 = xor3(_mm512_srli_epi64(p0, 32), c.c3, key1);
  c.c1 = p1;
  c.c3 = p0;
}

/// Joins the low half of `low` and the low half of `high`, in each lane.
[[gnu::always_inline]] inline __m512i pair(__m512i low, __m512i high) {
  return _mm512_mask_blend_epi32(0xaaaa, low, _mm512_slli_epi64(high, 32));
}

[[gnu::always_inline]] inline void write(const Counters& c, uint32_t* words) {
  const __m512i first = pair(c.c0, c.c1);
  const __m512i second = pair(c.c2, c.c3);
  const __m512i lower = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i upper = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_si512(words, _mm512_permutex2var_epi64(first, lower, second));
  _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(first, upper, second));
}

[[gnu::always_inline]] inline Counters start(uint64_t first) {
  const __m512i counter = _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(first)),
                                           _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  const __m512i zero = _mm512_setzero_si512();
  return {counter, _mm512_srli_epi64(counter, 32), zero, zero};
}

/// Sixteen counters: two independent chains.
[[gnu::always_inline]] inline void draw(uint64_t key, uint64_t first, uint32_t* words) {
  Counters a = start(first);
  Counters b = start(first + 8);
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const __m512i key0 = _mm512_set1_epi64(k0);
    const __m512i key1 = _mm512_set1_epi64(k1);
    advance(a, key0, key1);
    advance(b, key0, key1);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  write(a, words);
  write(b, words + 32);
}

}  // namespace

void draw_words(uint64_t key, uint64_t first, int64_t count, uint32_t* words) {
  for (int64_t i = 0; i < count; i += kDrawnWords) {
    draw(key, first + static_cast<uint64_t>(i / 4), words + i);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
