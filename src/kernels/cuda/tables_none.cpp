#include "src/kernels/cuda/tables.h"

namespace espalier::kernels::cuda {

std::vector<const Kernels*> tables() { return {}; }

std::string absence() {
  return "this build has no CUDA: configure it with `cmake --preset cuda` (CUDA 12.3 or later)";
}

std::vector<std::string> devices() { return {}; }

}  // namespace espalier::kernels::cuda
