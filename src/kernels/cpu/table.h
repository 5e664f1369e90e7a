#pragma once
// Every operation of one CPU table. The sources of this folder are compiled once for each
// instruction set; ESPALIER_ISA (a compile definition, see CMakeLists.txt) names the namespace that
// keeps the copies apart. What such a source calls must be in that namespace, always inlined, or
// compiled elsewhere once: a shared inline function could be linked in its AVX-512 form into the
// portable table.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

// In operations.def: plain and workspace.
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
