// Sixteen dense elements at a time: their 16 bits of the bitmap are the mask of a register compress
// or expand, the popcount of those bits moves the packed pointer.
#include <immintrin.h>

#include "src/kernels/cpu/index_words.h"
#include "src/kernels/cpu/loops.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kLanes = 16;

/// The first n lanes.
[[gnu::always_inline]] inline __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= kLanes ? 0xffff : (1 << n) - 1);
}

[[gnu::always_inline]] inline __m512 read(const float* x) { return _mm512_loadu_ps(x); }
[[gnu::always_inline]] inline __m512 read(const float* x, __mmask16 lanes) {
  return _mm512_maskz_loadu_ps(lanes, x);
}
[[gnu::always_inline]] inline __m512 widen(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
[[gnu::always_inline]] inline __m512 read(const bf16* x) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
[[gnu::always_inline]] inline __m512 read(const bf16* x, __mmask16 lanes) {
  return widen(_mm256_maskz_loadu_epi16(lanes, x));
}

/// To bf16, to nearest even; NaN stays NaN.
[[gnu::always_inline]] inline __m256i narrow(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}

[[gnu::always_inline]] inline void write(float* x, __m512 value) { _mm512_storeu_ps(x, value); }
[[gnu::always_inline]] inline void write(float* x, __mmask16 lanes, __m512 value) {
  _mm512_mask_storeu_ps(x, lanes, value);
}
[[gnu::always_inline]] inline void write(bf16* x, __m512 value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), narrow(value));
}
[[gnu::always_inline]] inline void write(bf16* x, __mmask16 lanes, __m512 value) {
  _mm256_mask_storeu_epi16(x, lanes, narrow(value));
}

/// What is left of the packed range decides how much of a register may be touched.
template <bool kAccumulate>
[[gnu::always_inline]] inline void append(__m512 dense, __mmask16 keep, float* packed, int64_t left) {
  const __m512 values = _mm512_maskz_compress_ps(keep, dense);
  const auto count = static_cast<int64_t>(__builtin_popcount(keep));
  if (!kAccumulate && left >= kLanes) {
    write(packed, values);
  } else {
    const __mmask16 lanes = first_lanes(count);
    write(packed, lanes, kAccumulate ? _mm512_add_ps(read(packed, lanes), values) : values);
  }
}

template <bool kAccumulate, class T>
void gather(const WordRun& run, const T* dense, float* packed) {
  int64_t k = 0;
  const int64_t whole = run.size / 64 * 64;
  for (int64_t first = 0; first < whole; first += 64) {
    const uint64_t word = run.words[first / 64];
#pragma GCC unroll 4
    for (int64_t i = 0; i < 64; i += kLanes) {
      const auto keep = static_cast<__mmask16>(word >> i);
      append<kAccumulate>(read(dense + first + i), keep, packed + k, run.kept - k);
      k += __builtin_popcount(keep);
    }
  }
  for (int64_t first = whole; first < run.size; first += kLanes) {
    const auto keep = static_cast<__mmask16>(run.words[first / 64] >> (first % 64));
    const __m512 values = read(dense + first, first_lanes(run.size - first));
    append<kAccumulate>(values, keep, packed + k, run.kept - k);
    k += __builtin_popcount(keep);
  }
}

/// The next kept elements, spread to their lanes; others zero.
[[gnu::always_inline]] inline __m512 spread(const float* packed, __mmask16 keep, int64_t left) {
  const __m512 values = left >= kLanes ? read(packed) : read(packed, first_lanes(left));
  return _mm512_maskz_expand_ps(keep, values);
}

template <bool kClear, class T>
void scatter(const WordRun& run, const float* packed, T* dense) {
  int64_t k = 0;
  const int64_t whole = run.size / 64 * 64;
  for (int64_t first = 0; first < whole; first += 64) {
    const uint64_t word = run.words[first / 64];
#pragma GCC unroll 4
    for (int64_t i = 0; i < 64; i += kLanes) {
      const auto keep = static_cast<__mmask16>(word >> i);
      const __m512 values = spread(packed + k, keep, run.kept - k);
      if (kClear) {
        write(dense + first + i, values);
      } else {
        write(dense + first + i, keep, values);
      }
      k += __builtin_popcount(keep);
    }
  }
  for (int64_t first = whole; first < run.size; first += kLanes) {
    const auto keep = static_cast<__mmask16>(run.words[first / 64] >> (first % 64));
    const __m512 values = spread(packed + k, keep, run.kept - k);
    write(dense + first, kClear ? first_lanes(run.size - first) : keep, values);
    k += __builtin_popcount(keep);
  }
}

}  // namespace

void gather_words(const WordRun& run, const float* dense, float* packed, bool accumulate) {
  accumulate ? gather<true>(run, dense, packed) : gather<false>(run, dense, packed);
}
void gather_words(const WordRun& run, const bf16* dense, float* packed, bool accumulate) {
  accumulate ? gather<true>(run, dense, packed) : gather<false>(run, dense, packed);
}
void scatter_words(const WordRun& run, const float* packed, float* dense, bool clear) {
  clear ? scatter<true>(run, packed, dense) : scatter<false>(run, packed, dense);
}
void scatter_words(const WordRun& run, const float* packed, bf16* dense, bool clear) {
  clear ? scatter<true>(run, packed, dense) : scatter<false>(run, packed, dense);
}

}  // namespace espalier::kernels::ESPALIER_ISA
