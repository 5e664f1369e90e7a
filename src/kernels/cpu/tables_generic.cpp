// Not x86: one table, the plain loops compiled for the compiler's default target.
#include "src/kernels/cpu/tables.h"

namespace espalier::kernels {

namespace portable {
const Kernels& table();
}

namespace cpu {

std::vector<const Kernels*> tables() { return {&portable::table()}; }

bool has_slow_bf16_pairs() { return false; }

}  // namespace cpu

}  // namespace espalier::kernels
