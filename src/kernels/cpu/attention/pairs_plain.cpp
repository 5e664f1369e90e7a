// The instruction set does not multiply pairs of bf16 numbers: they are widened to fp32.
#include "src/kernels/cpu/attention/tile.h"

namespace espalier::kernels::ESPALIER_ISA {

const TileMath* pair_math() { return nullptr; }

}  // namespace espalier::kernels::ESPALIER_ISA
