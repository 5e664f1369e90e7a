// Compiled for AVX2 (CMakeLists.txt). It includes nothing whose inline functions other sources
// share: the linker might choose this copy for all of them.
#ifdef __AVX2__
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace espalier {

uint64_t checksum_avx2(const void* bytes, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, size, seed);
}

}  // namespace espalier
#endif
