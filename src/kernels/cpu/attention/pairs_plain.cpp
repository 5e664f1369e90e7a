// Without an instruction that multiplies pairs of bf16 numbers, these are widened to fp32.
#include "src/kernels/cpu/attention/tile.h"

namespace espalier::kernels::ESPALIER_ISA {

const TileMath* pair_math() { return nullptr; }

}  // namespace espalier::kernels::ESPALIER_ISA
