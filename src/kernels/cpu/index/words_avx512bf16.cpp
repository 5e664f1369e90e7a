// bf16 to bf16 and fp16 to fp16, thirty-two dense elements at a time; storage "expanded" does this
// for every product. Other types as in words_lanes.h.
#include "src/kernels/cpu/index/words_lanes.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kHalves = 32;  ///< 16-bit lanes of a register

/// Mask of the first n lanes, at most all.
[[gnu::always_inline]] inline __mmask32 first_halves(int64_t n) {
  return static_cast<__mmask32>(n >= kHalves ? 0xffffffffU : (1U << n) - 1);
}

/// Writes the kept lanes of `values` contiguously. Unless `whole`, writes nothing beyond them.
[[gnu::always_inline]] inline void append(__m512i values, __mmask32 keep, void* packed,
                                          bool whole) {
  const __m512i kept = _mm512_mask_compress_epi16(fresh_zero(), keep, values);
  if (whole) {
    _mm512_storeu_si512(packed, kept);
  } else {
    _mm512_mask_storeu_epi16(packed, first_halves(__builtin_popcount(keep)), kept);
  }
}

/// `run.kept` limits the elements of `packed` that may be written; returns the number of kept
/// elements.
template <class Half>
int64_t gather_halves(const WordRun& run, const Half* dense, Half* packed) {
  int64_t k = 0;
  for (int64_t first = 0; first < run.size; first += kHalves) {
    const auto keep = static_cast<__mmask32>(run.words[first / 64] >> (first % 64));
    const __mmask32 present = first_halves(run.size - first);
    append(_mm512_maskz_loadu_epi16(present, dense + first), keep, packed + k,
           run.kept - k >= kHalves);
    k += __builtin_popcount(keep);
  }
  return k;
}

/// Thirty-two dense elements. Reads 32 lanes of `packed` if `whole`, else only the kept ones.
template <bool kClear, class Half>
[[gnu::always_inline]] inline __m512i spread(const Half* packed, __mmask32 keep, const Half* dense,
                                             __mmask32 present, bool whole) {
  const __m512i kept =
      whole ? _mm512_loadu_si512(packed)
            : _mm512_maskz_loadu_epi16(first_halves(__builtin_popcount(keep)), packed);
  const __m512i others = kClear ? fresh_zero() : _mm512_maskz_loadu_epi16(present, dense);
  return _mm512_mask_expand_epi16(others, keep, kept);
}

template <bool kClear, class Half>
void scatter_halves(const WordRun& run, const Half* packed, Half* dense) {
  const int64_t whole = run.size / 64 * 64;
  int64_t k = 0;
  int64_t first = 0;
  for (; first < whole && run.kept - k >= 64; first += 64) {
    const uint64_t word = run.words[first / 64];
    const auto low = static_cast<__mmask32>(word);
    const Half* upper = packed + k + __builtin_popcount(low);
    _mm512_storeu_si512(dense + first,
                        spread<kClear>(packed + k, low, dense + first, ~__mmask32{0}, true));
    _mm512_storeu_si512(dense + first + 32,
                        spread<kClear>(upper, static_cast<__mmask32>(word >> 32),
                                       dense + first + 32, ~__mmask32{0}, true));
    k += __builtin_popcountll(word);
  }
  for (; first < run.size; first += kHalves) {
    const auto keep = static_cast<__mmask32>(run.words[first / 64] >> (first % 64));
    const __mmask32 present = first_halves(run.size - first);
    _mm512_mask_storeu_epi16(dense + first, present,
                             spread<kClear>(packed + k, keep, dense + first, present, false));
    k += __builtin_popcount(keep);
  }
}

template <class Half>
void gather_same(const WordRun& run, const Half* dense, Half* packed, bool accumulate) {
  if (accumulate) {
    gather_staged(run, dense, packed, true);
  } else {
    gather_halves(run, dense, packed);
  }
}

template <class Half>
void scatter_same(const WordRun& run, const Half* packed, Half* dense, bool clear) {
  clear ? scatter_halves<true>(run, packed, dense) : scatter_halves<false>(run, packed, dense);
}

}  // namespace

template <>
void gather_words(const WordRun& run, const bf16* dense, bf16* packed, bool accumulate) {
  gather_same(run, dense, packed, accumulate);
}
template <>
void gather_words(const WordRun& run, const fp16* dense, fp16* packed, bool accumulate) {
  gather_same(run, dense, packed, accumulate);
}

template <>
void scatter_words(const WordRun& run, const bf16* packed, bf16* dense, bool clear) {
  scatter_same(run, packed, dense, clear);
}
template <>
void scatter_words(const WordRun& run, const fp16* packed, fp16* dense, bool clear) {
  scatter_same(run, packed, dense, clear);
}

}  // namespace espalier::kernels::ESPALIER_ISA
