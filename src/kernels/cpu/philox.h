#pragma once
// Random words in bulk: the numbers of src/core/rng.h, many counters at a time. Two
// implementations, chosen by CMake: philox_plain.cpp, and philox_avx512.cpp with the widening
// multiply that compilers do not find by themselves.
#include <cstdint>

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int64_t kDrawnWords = 64;

/// words[4 i + w] = word w of philox(key, 0, first + i), for `count` words, a multiple of
/// kDrawnWords.
void draw_words(uint64_t key, uint64_t first, int64_t count, uint32_t* words);

}  // namespace espalier::kernels::ESPALIER_ISA
