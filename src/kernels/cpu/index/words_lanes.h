#pragma once
// Gather and scatter by bitmap with AVX-512, sixteen dense elements at a time. Their 16 bits of the
// bitmap are the mask of a register compress or expand; the popcount of those bits advances the
// packed pointer. Included by one source per table.
#include <immintrin.h>

#include "src/kernels/cpu/index/words.h"
#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kLanes = 16;

/// Mask of the first n lanes, at most all.
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

[[gnu::always_inline]] inline __m512 read(const fp16* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
[[gnu::always_inline]] inline __m512 read(const fp16* x, __mmask16 lanes) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, x));
}

/// A separate zero register. The zero-masked forms of compress and expand wait for the old value of
/// their destination (Zen 5), which makes neighbours dependent; merging into a fresh zero does not.
/// The empty asm keeps the compiler from replacing one form by the other.
[[gnu::always_inline]] inline __m512i fresh_zero() {
  __m512i zero = _mm512_setzero_si512();
  asm("" : "+v"(zero));
  return zero;
}

/// Writes the kept lanes of `values` contiguously. Unless `whole`, writes nothing beyond them.
[[gnu::always_inline]] inline void append(__m512 values, __mmask16 keep, float* packed,
                                          bool whole) {
  const __m512 kept = _mm512_mask_compress_ps(_mm512_castsi512_ps(fresh_zero()), keep, values);
  if (whole) {
    _mm512_storeu_ps(packed, kept);
  } else {
    _mm512_mask_storeu_ps(packed, first_lanes(__builtin_popcount(keep)), kept);
  }
}

/// One bitmap word with 64 existing dense elements; returns the number of kept elements.
template <class T>
[[gnu::always_inline]] inline int64_t gather_word(uint64_t word, const T* dense, float* packed,
                                                  bool whole) {
#pragma GCC unroll 4
  for (int i = 0; i < 64; i += kLanes) {
    const uint64_t before = word & ((uint64_t{1} << i) - 1);
    append(read(dense + i), static_cast<__mmask16>(word >> i),
           packed + __builtin_popcountll(before), whole);
  }
  return __builtin_popcountll(word);
}

/// `run.kept` limits the elements of `packed` that may be written; returns the number of kept
/// elements.
template <class T>
int64_t gather(const WordRun& run, const T* dense, float* packed) {
  int64_t k = 0;
  const int64_t whole = run.size / 64 * 64;
  for (int64_t first = 0; first < whole; first += 64) {
    const uint64_t word = run.words[first / 64];
    if (run.kept - k >= 64) {
      k += gather_word(word, dense + first, packed + k, true);
    } else {
      k += gather_word(word, dense + first, packed + k, false);
    }
  }
  for (int64_t first = whole; first < run.size; first += kLanes) {
    const auto keep = static_cast<__mmask16>(run.words[first / 64] >> (first % 64));
    append(read(dense + first, first_lanes(run.size - first)), keep, packed + k, false);
    k += __builtin_popcount(keep);
  }
  return k;
}

/// The bits of 16-bit numbers in 32-bit lanes, rounded to nearest even; NaN stays NaN.
[[gnu::always_inline]] inline __m512i narrow(__m512 value, bf16) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_srli_epi32(_mm512_mask_mov_epi32(sum, nan, _mm512_set1_epi32(0x7fc00000)), 16);
}

[[gnu::always_inline]] inline __m512i narrow(__m512 value, fp16) {
  return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

[[gnu::always_inline]] inline void write(float* x, __mmask16 lanes, __m512 value) {
  _mm512_mask_storeu_ps(x, lanes, value);
}
template <class Half>
[[gnu::always_inline]] inline void write(Half* x, __mmask16 lanes, __m512 value) {
  _mm256_mask_storeu_epi16(x, lanes, _mm512_cvtepi32_epi16(narrow(value, Half{})));
}

constexpr int64_t kStage = 1024;  ///< dense elements whose kept ones pass through a buffer in L1

/// Uses a buffer: accumulating in place would read data stored just before at another alignment,
/// which stalls. Rounding only the kept elements also costs less than rounding all.
template <class T, class P>
void gather_staged(const WordRun& run, const T* dense, P* packed, bool accumulate) {
  alignas(64) float stage[kStage + 64];
  for (int64_t first = 0; first < run.size; first += kStage) {
    const WordRun part{run.words + first / 64, least(kStage, run.size - first), kStage + 64};
    const int64_t kept = gather(part, dense + first, stage);
    for (int64_t i = 0; i < kept; i += kLanes) {
      const __mmask16 lanes = first_lanes(kept - i);
      const __m512 before = accumulate ? read(packed + i, lanes) : _mm512_setzero_ps();
      write(packed + i, lanes, _mm512_add_ps(before, _mm512_load_ps(stage + i)));
    }
    packed += kept;
  }
}

// Scatter moves 32-bit lanes: floats, or the bits of 16-bit numbers in the lower half. fp32 numbers
// are rounded before the expand, because there are fewer of them than dense elements.

/// Lanes of `x` for a dense array of the last argument's type.
[[gnu::always_inline]] inline __m512i packed_lanes(const uint32_t* x, __mmask16 lanes,
                                                   const void* /*dense*/) {
  return _mm512_maskz_loadu_epi32(lanes, x);
}
template <class Half>
requires(sizeof(Half) == 2) [[gnu::always_inline]] inline __m512i
    packed_lanes(const Half* x, __mmask16 lanes, const Half* /*dense*/) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, x));
}
template <class Half>
requires(sizeof(Half) == 2) [[gnu::always_inline]] inline __m512i
    packed_lanes(const Half* x, __mmask16 lanes, const float* /*dense*/) {
  return _mm512_castps_si512(read(x, lanes));
}

[[gnu::always_inline]] inline __m512i old_lanes(const float* x, __mmask16 lanes) {
  return _mm512_maskz_loadu_epi32(lanes, x);
}
template <class Half>
[[gnu::always_inline]] inline __m512i old_lanes(const Half* x, __mmask16 lanes) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, x));
}
[[gnu::always_inline]] inline void write(float* x, __m512i lanes) { _mm512_storeu_si512(x, lanes); }
template <class Half>
[[gnu::always_inline]] inline void write(Half* x, __m512i lanes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), _mm512_cvtepi32_epi16(lanes));
}
[[gnu::always_inline]] inline void write(float* x, __mmask16 mask, __m512i lanes) {
  _mm512_mask_storeu_epi32(x, mask, lanes);
}
template <class Half>
[[gnu::always_inline]] inline void write(Half* x, __mmask16 mask, __m512i lanes) {
  _mm256_mask_storeu_epi16(x, mask, _mm512_cvtepi32_epi16(lanes));
}

/// Scatters to sixteen dense elements. Reads 16 lanes of `packed` if `whole`, else only the kept
/// ones.
template <bool kClear, class P, class T>
[[gnu::always_inline]] inline __m512i spread(const P* packed, __mmask16 keep, const T* dense,
                                             __mmask16 present, bool whole) {
  const __mmask16 lanes = whole ? 0xffff : first_lanes(__builtin_popcount(keep));
  const __m512i kept = packed_lanes(packed, lanes, dense);
  const __m512i others = kClear ? fresh_zero() : old_lanes(dense, present);
  return _mm512_mask_expand_epi32(others, keep, kept);
}

template <bool kClear, class P, class T>
[[gnu::always_inline]] inline int64_t scatter_word(uint64_t word, const P* packed, T* dense,
                                                   bool whole) {
#pragma GCC unroll 4
  for (int i = 0; i < 64; i += kLanes) {
    const uint64_t before = word & ((uint64_t{1} << i) - 1);
    write(dense + i, spread<kClear>(packed + __builtin_popcountll(before),
                                    static_cast<__mmask16>(word >> i), dense + i, 0xffff, whole));
  }
  return __builtin_popcountll(word);
}

/// `run.kept` limits the elements of `packed` that may be read; it can exceed the number of kept
/// ones.
template <bool kClear, class P, class T>
void scatter_lanes(const WordRun& run, const P* packed, T* dense) {
  int64_t k = 0;
  const int64_t whole = run.size / 64 * 64;
  for (int64_t first = 0; first < whole; first += 64) {
    const uint64_t word = run.words[first / 64];
    if (run.kept - k >= 64) {
      k += scatter_word<kClear>(word, packed + k, dense + first, true);
    } else {
      k += scatter_word<kClear>(word, packed + k, dense + first, false);
    }
  }
  for (int64_t first = whole; first < run.size; first += kLanes) {
    const auto keep = static_cast<__mmask16>(run.words[first / 64] >> (first % 64));
    const __mmask16 present = first_lanes(run.size - first);
    write(dense + first, present, spread<kClear>(packed + k, keep, dense + first, present, false));
    k += __builtin_popcount(keep);
  }
}

template <bool kClear>
void scatter(const WordRun& run, const float* packed, float* dense) {
  scatter_lanes<kClear>(run, reinterpret_cast<const uint32_t*>(packed), dense);
}

template <bool kClear, class Half, class T>
void scatter(const WordRun& run, const Half* packed, T* dense) {
  scatter_lanes<kClear>(run, packed, dense);
}

template <bool kClear, class Half>
void scatter(const WordRun& run, const float* packed, Half* dense) {
  alignas(64) uint32_t rounded[kStage + 64];
  int64_t k = 0;
  for (int64_t first = 0; first < run.size; first += kStage) {
    WordRun part{run.words + first / 64, least(kStage, run.size - first), 0};
    int64_t kept = 0;
    for (int64_t word = 0; word < divide_up(part.size, 64); ++word) {
      kept += __builtin_popcountll(part.words[word]);
    }
    for (int64_t i = 0; i < kept; i += kLanes) {
      _mm512_store_si512(rounded + i, narrow(read(packed + k + i, first_lanes(kept - i)), Half{}));
    }
    part.kept = kStage + 64;
    scatter_lanes<kClear>(part, rounded, dense + first);
    k += kept;
  }
}

}  // namespace

template <class T, class P>
void gather_words(const WordRun& run, const T* dense, P* packed, bool accumulate) {
  if constexpr (sizeof(P) == sizeof(float)) {
    if (!accumulate) {
      gather(run, dense, packed);
      return;
    }
  }
  gather_staged(run, dense, packed, accumulate);
}

template <class P, class T>
void scatter_words(const WordRun& run, const P* packed, T* dense, bool clear) {
  clear ? scatter<true>(run, packed, dense) : scatter<false>(run, packed, dense);
}

template void gather_words(const WordRun&, const float*, float*, bool);
template void gather_words(const WordRun&, const float*, bf16*, bool);
template void gather_words(const WordRun&, const bf16*, float*, bool);
template void gather_words(const WordRun&, const float*, fp16*, bool);
template void gather_words(const WordRun&, const fp16*, float*, bool);
template void scatter_words(const WordRun&, const float*, float*, bool);
template void scatter_words(const WordRun&, const float*, bf16*, bool);
template void scatter_words(const WordRun&, const bf16*, float*, bool);
template void scatter_words(const WordRun&, const float*, fp16*, bool);
template void scatter_words(const WordRun&, const fp16*, float*, bool);

}  // namespace espalier::kernels::ESPALIER_ISA
