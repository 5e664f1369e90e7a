#pragma once
// The random numbers of src/core/rng.h on the device, bit for bit the same.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

struct Words {
  uint32_t word[4];
};

/// philox(key, 0, counter)
__device__ __forceinline__ Words philox_words(uint64_t key, uint64_t counter) {
  auto c0 = static_cast<uint32_t>(counter);
  auto c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = 0, c3 = 0;
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53U, c0);
    const uint32_t high1 = __umulhi(0xCD9E8D57U, c2);
    const uint32_t low0 = 0xD2511F53U * c0;
    const uint32_t low1 = 0xCD9E8D57U * c2;
    c0 = high1 ^ c1 ^ k0;
    c2 = high0 ^ c3 ^ k1;
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

/// Words of elements e … e + 3. The word of element e is number e % 4 of counter e / 4.
__device__ __forceinline__ Words words_of_quad(uint64_t key, int64_t e) {
  const auto counter = static_cast<uint64_t>(e) / 4;
  const auto shift = static_cast<unsigned>(e & 3);
  const Words first = philox_words(key, counter);
  if (shift == 0) {
    return first;
  }
  const Words second = philox_words(key, counter + 1);
  Words made;
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) {
    // Selects word k + shift of eight by comparison, since registers cannot be indexed.
    uint32_t word = 0;
#pragma unroll
    for (unsigned s = 1; s < 4; ++s) {
      const uint32_t there = k + s < 4 ? first.word[(k + s) % 4] : second.word[(k + s) % 4];
      word = s == shift ? there : word;
    }
    made.word[k] = word;
  }
  return made;
}

}  // namespace espalier::kernels::ESPALIER_GPU
