#pragma once
// Flops and bytes of operations, as the dry table counts them. Flops are those of the formula (an
// exponential counts as 20, a square root or a division as one). Bytes are the memory traffic if
// every operand is read or written once.
#include <cmath>

#include "src/kernels/verify/verify.h"

namespace espalier::kernels {

inline double elements(const Tensor& t) { return t ? static_cast<double>(t.count()) : 0; }

/// Bytes of all tensors, each read or written once.
template <class... Tensors>
double traffic(const Tensors&... tensors) {
  return (0.0 + ... + static_cast<double>(tensors ? tensors.bytes() : 0));
}

/// Bytes read for positions: none; 4 for each kept element; or the bitmap with its ranks.
inline double traffic(const Positions& positions) {
  if (positions.list != nullptr) {
    return 4.0 * static_cast<double>(positions.count);
  }
  return positions.bitmap != nullptr ? static_cast<double>(positions.size) * (1.0 / 8 + 4.0 / 512)
                                     : 0;
}

/// A list touches the cache lines that hold a kept element (expected number for a random mask). The
/// other forms stream over the whole dense array.
inline double dense_traffic(const Tensor& dense, const Positions& positions) {
  if (!dense || positions.size == 0) {
    return 0;
  }
  const double pruned =
      1 - static_cast<double>(positions.count) / static_cast<double>(positions.size);
  const double in_line = 64.0 / static_cast<double>(size_of(dense.dtype));
  return traffic(dense) * (positions.list != nullptr ? 1 - std::pow(pruned, in_line) : 1);
}

/// Flops of one exponential: range reduction and a polynomial; a fused multiply-add counts twice.
inline constexpr double kExp = 20;

inline double flops_of(Activation kind) {
  switch (kind) {
    case Activation::none:
    case Activation::relu:
      return 1;
    case Activation::gelu:
      return kExp + 8;
    case Activation::silu:
      return kExp + 4;
    case Activation::gelu_erf:
      return kExp + 22;
  }
  return 0;
}

}  // namespace espalier::kernels
