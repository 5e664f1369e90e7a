#pragma once
// Functions that the operations share but must not compile for their own instruction set: compiled
// once, called from every table (see table.h).
#include <cstddef>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

/// stream.workspace(bytes).
std::byte* workspace(Stream& stream, size_t bytes);

/// Throws Bug unless all of `ids` (int32) are in [0, limit); `what` names them.
void require_ids_below(const char* what, const Tensor& ids, int64_t limit);

/// Throws Bug unless all of `lengths` (int32) are positive.
void require_cached(const Tensor& lengths);

/// Throws if a kept form of a sparse matrix was made for another segment (sparse/tile.h).
void require_segment(int64_t made_for, int64_t segment);

/// Throws if the positions are missing: with kept forms they may be, unless a form is to be made.
void require_positions(const Positions& positions);

/// True if the call only plans: it must not touch its memory.
bool is_dry(Stream& stream);

/// Allocates consecutive pieces of the workspace, each in whole cache lines; without memory it only
/// sums their sizes.
struct Carver {
  std::byte* memory = nullptr;
  size_t used = 0;

  template <class T>
  [[gnu::always_inline]] T* take(int64_t count) {
    std::byte* piece = memory == nullptr ? nullptr : memory + used;
    used += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
};

// Operations of kind `once` in operations.def.
#define ESPALIER_DECLARE_plain(row, Args)
#define ESPALIER_DECLARE_workspace(row, Args)
#define ESPALIER_DECLARE_once(row, Args) void row(Stream& stream, const Args& args);
#define ESPALIER_OPERATION(row, Args, on_cpu) ESPALIER_DECLARE_##on_cpu(row, Args)
#include "src/kernels/operations.def"
#undef ESPALIER_DECLARE_plain
#undef ESPALIER_DECLARE_workspace
#undef ESPALIER_DECLARE_once

}  // namespace espalier::kernels::cpu
