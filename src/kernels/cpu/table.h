#pragma once
// Every operation of one CPU table. The sources of this folder are compiled once per instruction
// set; ESPALIER_ISA (a compile definition, see CMakeLists.txt) names the namespace that separates
// the copies. A function called from such a source must be in that namespace, always inlined, or
// compiled once elsewhere: otherwise the linker could put the AVX-512 form of a shared inline
// function into the portable table.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

// Operations of kinds `plain` and `workspace` in operations.def.
#define ESPALIER_DECLARE_plain(row, Args) void row(Stream& stream, const Args& args);
#define ESPALIER_DECLARE_workspace(row, Args) void row(Stream& stream, const Args& args);
#define ESPALIER_DECLARE_once(row, Args)
#define ESPALIER_OPERATION(row, Args, on_cpu) ESPALIER_DECLARE_##on_cpu(row, Args)
#include "src/kernels/operations.def"
#undef ESPALIER_DECLARE_plain
#undef ESPALIER_DECLARE_workspace
#undef ESPALIER_DECLARE_once

const Kernels& table();

}  // namespace espalier::kernels::ESPALIER_ISA
