// The instruction set does not multiply pairs of bf16 numbers: they are widened to fp32.
#include "src/kernels/cpu/block/tile.h"

namespace espalier::kernels::ESPALIER_ISA {

BlockTiles pair_tiles() { return {nullptr, nullptr}; }

}  // namespace espalier::kernels::ESPALIER_ISA
