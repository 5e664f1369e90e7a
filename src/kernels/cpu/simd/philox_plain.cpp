#include "src/kernels/cpu/simd/philox.h"

namespace espalier::kernels::ESPALIER_ISA {

void draw_words(uint64_t key, uint64_t first, int64_t count, uint32_t* words) {
  for (int64_t i = 0; i < count / 4; ++i) {
    const uint64_t counter = first + static_cast<uint64_t>(i);
    auto c0 = static_cast<uint32_t>(counter);
    auto c1 = static_cast<uint32_t>(counter >> 32);
    uint32_t c2 = 0;
    uint32_t c3 = 0;
    auto k0 = static_cast<uint32_t>(key);
    auto k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53U} * c0;
      const uint64_t p1 = uint64_t{0xCD9E8D57U} * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(p1);
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    words[4 * i] = c0;
    words[4 * i + 1] = c1;
    words[4 * i + 2] = c2;
    words[4 * i + 3] = c3;
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
