#pragma once
// Rotary position embedding (Su et al., RoFormer, 2021).
#include "src/core/tensor.h"

namespace espalier::kernels {

/// Rotates pairs of columns of each head in place. With half = width / 2, for i < half and position
/// p of the row:
///   x[i], x[i + half] = x[i] cos - x[i + half] sin, x[i + half] cos + x[i] sin
/// where cos = cosines[p, i] and sin = sines[p, i]. Columns from `width` on stay as they are.
/// Throws Bug if a position is not a row of the tables (on a device: undefined).
struct RotaryArgs {
  Tensor x;  ///< any [B, T, heads D], or [T, heads D] (one sequence); rows may be strided
  Tensor cosines, sines;  ///< fp32 [positions, width / 2]
  Tensor positions;       ///< int32 [B T], or empty: the position of row (b, t) is t
  int64_t heads = 1;
  int64_t width = 0;  ///< rotated columns of a head: even, at most D
  bool inverse =
      false;  ///< rotates by the negative angle: the gradient of x from that of the result
};

}  // namespace espalier::kernels
