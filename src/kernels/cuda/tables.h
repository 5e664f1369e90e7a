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
/// For plans of runs on a GPU, wherever they are made (Kernels::plan); null in a build without
/// CUDA.
const Kernels* plan_table();
/// Name, memory and compute capability of each device, and the versions of driver and runtime.
std::vector<std::string> devices();
/// Those that are loaded when they are needed, and what that comes to. Empty without a device.
std::vector<std::string> libraries();
/// Bytes that each has free, for anybody.
std::vector<size_t> free_bytes();

}  // namespace espalier::kernels::cuda
