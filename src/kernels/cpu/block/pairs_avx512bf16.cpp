// Products of pairs of bf16 numbers, two instructions per cycle on Zen 4 and later.
#include <immintrin.h>

#include "src/kernels/cpu/block/tile_loop.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

struct PairProduct {
  [[gnu::always_inline]] static Lanes add(Lanes sum, Lanes b, uint32_t word) {
    const __m512i pair = _mm512_set1_epi32(static_cast<int>(word));
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(b), reinterpret_cast<__m512bh>(pair));
  }
};

}  // namespace

BlockTiles pair_tiles() { return kTilesOf<PairProduct>; }

}  // namespace espalier::kernels::ESPALIER_ISA
