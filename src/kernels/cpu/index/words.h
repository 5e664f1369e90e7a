#pragma once
// Gather and scatter by the words of a bitmap. Three implementations, chosen by CMake: plain loops
// over set bits (words_plain.cpp); register compress / expand of 32-bit lanes
// (words_avx512.cpp, words_lanes.h); the same of 16-bit lanes where AVX-512 VBMI2 has them
// (words_avx512bf16.cpp). The forms of these instructions that write memory are slow on Zen 4 and
// 5, so whole registers are written.
#include <cstdint>

#include "src/core/types.h"

namespace espalier::kernels::ESPALIER_ISA {

/// A run of bitmap words: it covers `size` dense elements (at most 64 a word; bits beyond are
/// zero), of which `kept` are packed. Nothing beyond these ranges is read or written.
struct WordRun {
  const uint64_t* words;
  int64_t size;
  int64_t kept;
};

/// packed (+)= the kept elements of dense; the same type, or one of them fp32.
template <class T, class P>
void gather_words(const WordRun& run, const T* dense, P* packed, bool accumulate);

/// dense = packed where kept; elsewhere zero when `clear`, else what it was.
template <class P, class T>
void scatter_words(const WordRun& run, const P* packed, T* dense, bool clear);

}  // namespace espalier::kernels::ESPALIER_ISA
