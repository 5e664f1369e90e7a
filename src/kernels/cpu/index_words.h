#pragma once
// Gather and scatter by the words of a bitmap. Two implementations, chosen by CMake: plain loops
// over set bits (index_words_plain.cpp), and register compress / expand (index_words_avx512.cpp;
// the forms of these instructions that write memory are slow on Zen 4 and 5, so whole registers are
// written).
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

/// packed (+)= the kept elements of dense.
void gather_words(const WordRun& run, const float* dense, float* packed, bool accumulate);
void gather_words(const WordRun& run, const bf16* dense, float* packed, bool accumulate);

/// dense = packed where kept; elsewhere zero when `clear`, else what it was.
void scatter_words(const WordRun& run, const float* packed, float* dense, bool clear);
void scatter_words(const WordRun& run, const float* packed, bf16* dense, bool clear);

}  // namespace espalier::kernels::ESPALIER_ISA
