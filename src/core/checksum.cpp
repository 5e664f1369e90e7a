#define XXH_INLINE_ALL
#include "src/core/checksum.h"

#include <xxhash.h>

namespace espalier {

#ifdef ESPALIER_CHECKSUM_AVX2
uint64_t checksum_avx2(const void* bytes, size_t size, uint64_t seed);  // checksum_avx2.cpp
#endif

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
#ifdef ESPALIER_CHECKSUM_AVX2
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2) {
    return checksum_avx2(bytes.data(), bytes.size(), seed);
  }
#endif
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace espalier
