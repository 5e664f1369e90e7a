// Attention tiles with vector products of pairs of bf16 numbers: two instructions per cycle on
// Zen 5.
#include "src/kernels/cpu/attention/pair_words.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

TileWords along_queries(const TileValues& tile, float* words) {
  for (int64_t i = 0; i < tile.queries; i += 2) {
    for (int64_t j = 0; j < tile.keys; j += kLanes) {
      _mm512_storeu_si512(words + i / 2 * kKeyTile + j, pairs_of_queries(tile, i, j));
    }
  }
  return {.words = words, .row = 1, .col = kKeyTile};
}

constexpr TileMath kPairMath{.elements = 2,
                             .product = tile_product<PairProduct>,
                             .along_keys = pairs_along_keys,
                             .along_queries = along_queries};

}  // namespace

const TileMath* pair_math() { return &kPairMath; }

}  // namespace espalier::kernels::ESPALIER_ISA
