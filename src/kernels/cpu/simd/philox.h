#pragma once
// Random words in bulk: the numbers of src/core/rng.h, many counters at a time. CMake chooses one
// of two implementations: philox_plain.cpp, or philox_avx512.cpp with the widening multiply, which
// compilers do not generate.
#include <cstdint>

#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int64_t kDrawnWords = 64;

/// words[4 i + w] = word w of philox(key, 0, first + i), for `count` words, a multiple of
/// kDrawnWords.
void draw_words(uint64_t key, uint64_t first, int64_t count, uint32_t* words);

/// The words of up to kMax elements; element e has word e % 4 of counter e / 4.
template <int64_t kMax>
class Words {
 public:
  /// Words of elements first … first + n - 1; valid until the next call.
  const uint32_t* draw(uint64_t key, int64_t first, int64_t n) {
    const int64_t group = first / kDrawnWords * kDrawnWords;
    draw_words(key, static_cast<uint64_t>(group / 4),
               divide_up(first + n - group, kDrawnWords) * kDrawnWords, words_);
    return words_ + (first - group);
  }

 private:
  alignas(64) uint32_t words_[kMax + 2 * kDrawnWords];
};

}  // namespace espalier::kernels::ESPALIER_ISA
