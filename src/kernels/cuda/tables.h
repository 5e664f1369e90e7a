#pragma once
// The tables of this build that need a GPU, if this machine has one that they run on.
#include <vector>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cuda {

/// Empty without a device, without a driver, or in a build without CUDA (tables_none.cpp).
std::vector<const Kernels*> tables();

}  // namespace espalier::kernels::cuda
