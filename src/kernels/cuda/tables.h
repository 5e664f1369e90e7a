#pragma once
// The GPU tables of this build that run on this machine.
#include <string>
#include <vector>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cuda {

/// Empty without a device, without a driver, or in a build without CUDA (tables_none.cpp).
std::vector<const Kernels*> tables();
/// The reason why `tables` is empty, and a remedy; empty if it is not.
std::string absence();
/// The table for memory plans of GPU runs, usable on any machine (Kernels::plan); null in a build
/// without CUDA.
const Kernels* plan_table();
/// Name, memory and compute capability of each device, and the versions of driver and runtime.
std::vector<std::string> devices();
/// Optional libraries: file, or the reason why our own kernels compute. Empty without a device.
std::vector<std::string> libraries();
/// Free bytes of each device, over all processes.
std::vector<size_t> free_bytes();

}  // namespace espalier::kernels::cuda
