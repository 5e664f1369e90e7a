#include "src/kernels/cuda/tables.h"

namespace espalier::kernels::cuda {

std::vector<const Kernels*> tables() { return {}; }

}  // namespace espalier::kernels::cuda
