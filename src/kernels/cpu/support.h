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

/// The rows of these names, of all tables.
void clip(Stream& stream, const ClipArgs& args);
void orthonormalise(Stream& stream, const OrthonormaliseArgs& args);
void keep_factor(Stream& stream, const KeepFactorArgs& args);

}  // namespace espalier::kernels::cpu
