#pragma once
// The tables of this build that need a GPU, if this machine has one that they run on.
#include <string>
#include <vector>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cuda {

/// Empty without a device, without a driver, or in a build without CUDA (tables_none.cpp).
std::vector<const Kernels*> tables();
/// Why that is empty, and what to do; empty where it is not.
std::string absence();
/// Name, memory and compute capability of each device, and the versions of driver and runtime.
std::vector<std::string> devices();

}  // namespace espalier::kernels::cuda
