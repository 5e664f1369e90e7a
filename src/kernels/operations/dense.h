#pragma once
// Products of dense matrices, with fused epilogues.
#include <cstdint>

#include "src/kernels/operations/activation.h"

namespace espalier::kernels {

/// Floating-point formats of 8 bits (OCP FP8): 4 bits of exponent, up to 448, or 5, up to 57,344.
enum class Float8 : uint8_t { none, e4m3, e5m2 };

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
/// With round_a and round_b (both or neither; not for fp16), an element x of that operand is
/// replaced by s q: q = x (1 / s), in fp32, rounded to that format, to nearest even; s = the
/// operand's largest magnitude over the format's largest number, at least 2^-126 (1 for zeros). A
/// non-finite operand makes c NaN. row_sums use a without rounding.
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
  Float8 round_a = Float8::none, round_b = Float8::none;
};

/// out [C] = sum over rows of x [R, C] (+ out when `accumulate`); x, out any. Sums are fp32,
/// rounded once.
struct ColumnSumArgs {
  Tensor x, out;
  bool accumulate = false;
};

}  // namespace espalier::kernels
