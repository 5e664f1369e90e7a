#pragma once
// What the functions of the dry table share: how they count flops and bytes, and ask for workspace.
// Flops and bytes add up in dry_count(); workspace is asked of the stream as kernels do, so that a
// dry arena learns of it.
#include "src/kernels/kernels.h"

namespace espalier::kernels::dry {

inline void add(double flops, double bytes) {
  DryCount& count = dry_count();
  count.flops += flops;
  count.bytes += bytes;
}

inline double elements(const Tensor& t) { return t ? static_cast<double>(t.count()) : 0; }

/// Bytes of all of them, each crossing the bus once.
template <class... Tensors>
double traffic(const Tensors&... tensors) {
  return (0.0 + ... + static_cast<double>(tensors ? tensors.bytes() : 0));
}

/// What reading the positions costs: nothing, 4 bytes a kept element, or a bit and its share of a
/// rank.
inline double traffic(const Positions& positions) {
  if (positions.list != nullptr) {
    return 4.0 * static_cast<double>(positions.count);
  }
  return positions.bitmap != nullptr ? static_cast<double>(positions.size) * (1.0 / 8 + 4.0 / 512)
                                     : 0;
}

/// Asks for at least the workspace that the CPU kernels take, so that a dry run plans for it. Those
/// of a device ask themselves (Kernels::plan).
inline void allow(Stream& stream, int64_t bytes) {
  if (!stream.arena().on_device()) {
    stream.workspace(static_cast<size_t>(bytes));
  }
}

inline int64_t rounded_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

/// Of one exponential: range reduction and a polynomial, a fused multiply-add counting twice.
inline constexpr double kExp = 20;

inline double flops_of(Activation kind) { return kind == Activation::gelu ? kExp + 8 : 1; }

}  // namespace espalier::kernels::dry
