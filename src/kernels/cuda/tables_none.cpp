#include "src/kernels/cuda/tables.h"

namespace espalier::kernels::cuda {

std::vector<const Kernels*> tables() { return {}; }

std::string absence() {
  return "this build has no CUDA: configure it with `cmake --preset cuda` (CUDA 12.3 or later)";
}

const Kernels* plan_table() { return nullptr; }

std::vector<std::string> devices() { return {}; }
std::vector<std::string> libraries() { return {}; }

std::vector<size_t> free_bytes() { return {}; }

}  // namespace espalier::kernels::cuda
