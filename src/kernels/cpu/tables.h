#pragma once
// The CPU tables of this build. CMake picks tables_x86.cpp or tables_generic.cpp.
#include <vector>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

/// The tables that run on this machine, fastest first; never empty.
std::vector<const Kernels*> tables();

}  // namespace espalier::kernels::cpu
