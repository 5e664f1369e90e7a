#pragma once
// The CPU tables of this build. CMake picks tables_x86.cpp or tables_generic.cpp.
#include <vector>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

/// The tables that run on this machine, fastest first; never empty.
std::vector<const Kernels*> tables();

/// Whether vdpbf16ps, the dot product of pairs of bf16, starts less than half as often as a fused
/// multiply-add: fp32 arithmetic is faster then.
bool has_slow_bf16_pairs();

}  // namespace espalier::kernels::cpu
