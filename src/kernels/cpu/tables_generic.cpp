// Not x86: one table, the plain loops compiled for the compiler's default target.
#include "src/kernels/cpu/tables.h"

namespace espalier::kernels {

namespace portable {
const Kernels& table();
}

namespace cpu {

std::vector<const Kernels*> tables() { return {&portable::table()}; }

}  // namespace cpu

bool has_native_bf16() { return false; }

}  // namespace espalier::kernels
