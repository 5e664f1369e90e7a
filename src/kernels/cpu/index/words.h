#pragma once
// Gather and scatter by the words of a bitmap. CMake chooses one of three implementations:
//   - plain loops over set bits (words_plain.cpp)
//   - register compress / expand of 32-bit lanes (words_avx512.cpp, words_lanes.h)
//   - the same with 16-bit lanes, with AVX-512 VBMI2 (words_avx512bf16.cpp)
// Whole registers are written, because the memory forms of these instructions are slow on Zen 4 and
// 5.
#include <cstdint>

#include "src/core/types.h"

namespace espalier::kernels::ESPALIER_ISA {

/// A run of bitmap words. It covers `size` dense elements (at most 64 per word; bits beyond are
/// zero); `kept` of them are packed. No element outside these ranges is read or written.
struct WordRun {
  const uint64_t* words;
  int64_t size;
  int64_t kept;
};

/// packed (+)= the kept elements of dense; both of one type, or one of them fp32.
template <class T, class P>
void gather_words(const WordRun& run, const T* dense, P* packed, bool accumulate);

/// dense = packed at kept positions; other elements become zero if `clear`, else keep their values.
template <class P, class T>
void scatter_words(const WordRun& run, const P* packed, T* dense, bool clear);

}  // namespace espalier::kernels::ESPALIER_ISA
