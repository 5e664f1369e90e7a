#pragma once
// Products of dense matrices, with fused epilogues.
#include <cstdint>

#include "src/kernels/operations/activation.h"

namespace espalier::kernels {

/// c [M, N] = op(a) op(b) (+ c when `accumulate`, else + `addend`) (+ bias [N], fp32). op
/// transposes if transpose_a or transpose_b is set. a, b: any, the same type; c: fp32 or that type;
/// accumulation in fp32. Rows may be strided. fp32 of a and b may be rounded to TF32
/// (Stream::tf32). A table may round bias to c's type first.
/// Fused epilogues and prologues of a layer:
///   activated       = f(c) of the stored c, so recomputing it from c gives the same bits
///   preactivation   c = op(a) op(b) f'(preactivation); a table may round the product before or
///                   after it multiplies. Excludes accumulate and all other epilogues
///   row_sums        (+)= op(a) 1: the bias gradient, computed with the weight gradient; requires a
///                   transposed a. A table may round the sums of one call to c's type before it
///                   adds them
/// Likewise a table may round the product to a 16-bit c's type before it adds c, addend or bias.
struct GemmArgs {
  Tensor a;       ///< [M, K], or [K, M] when transpose_a
  Tensor b;       ///< [K, N], or [N, K] when transpose_b
  Tensor c;       ///< [M, N]
  Tensor addend;  ///< [M, N] of c's type and stride, separate from c; or empty
  Tensor bias;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  Activation activation = Activation::none;  ///< f
  Tensor activated;                          ///< [M, N] of c's type, both contiguous; or empty
  Tensor preactivation;                      ///< likewise
  Tensor row_sums;                           ///< any [M], or empty
  bool accumulate_sums = false;
};

/// out [C] = sum over rows of x [R, C] (+ out when `accumulate`); x, out any. Sums are fp32,
/// rounded once.
struct ColumnSumArgs {
  Tensor x, out;
  bool accumulate = false;
};

}  // namespace espalier::kernels
