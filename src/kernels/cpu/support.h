#pragma once
// What the operations share but must not carry in their own instruction set: compiled once, called
// from every table (see table.h).
#include <cstddef>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

/// stream.workspace(bytes).
std::byte* workspace(Stream& stream, size_t bytes);

/// Throws Bug unless all of `ids` (int32) are in [0, limit); `what` names them.
void require_ids_below(const char* what, const Tensor& ids, int64_t limit);

/// Whether a call only plans: its memory must not be touched.
bool is_dry(Stream& stream);

// In operations.def: once.
#define ESPALIER_DECLARE_plain(row, Args)
#define ESPALIER_DECLARE_workspace(row, Args)
#define ESPALIER_DECLARE_once(row, Args) void row(Stream& stream, const Args& args);
#define ESPALIER_OPERATION(row, Args, on_cpu) ESPALIER_DECLARE_##on_cpu(row, Args)
#include "src/kernels/operations.def"
#undef ESPALIER_DECLARE_plain
#undef ESPALIER_DECLARE_workspace
#undef ESPALIER_DECLARE_once

}  // namespace espalier::kernels::cpu
