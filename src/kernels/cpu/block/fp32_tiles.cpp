#include "src/kernels/cpu/block/tile.h"

#include "src/kernels/cpu/block/tile_loop.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

struct Fp32Product {
  [[gnu::always_inline]] static Lanes add(Lanes sum, Lanes b, uint32_t word) {
    return sum + b * __builtin_bit_cast(float, word);
  }
};

}  // namespace

BlockTiles fp32_tiles() { return kTilesOf<Fp32Product>; }

}  // namespace espalier::kernels::ESPALIER_ISA
