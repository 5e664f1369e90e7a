#pragma once
// Products of dense matrices, and what is computed with them.
#include <cstdint>

#include "src/kernels/operations/activation.h"

namespace espalier::kernels {

/// Floating-point formats of 8 bits (OCP FP8): 4 bits of exponent, up to 448, or 5, up to 57,344.
enum class Float8 : uint8_t { none, e4m3, e5m2 };

/// c [M, N] = op(a) op(b) (+ c when `accumulate`, else + `addend`) (+ bias [N], fp32). op transposes
/// when asked.
/// a, b: any, the same type; c: fp32 or that type; accumulation in fp32. Rows may be strided. fp32
/// of a and b may be rounded to TF32 (Stream::tf32).
/// A table may round bias to c's type first.
/// What goes with a layer's product, in the same call:
///   activated       = f(c), c as it is stored: computing it again from c gives the same bits
///   preactivation   c = op(a) op(b) f'(preactivation); a table may round the product before it
///                   multiplies, or after. Without accumulate and any of the others
///   row_sums        (+)= op(a) 1, a bias' gradient beside that of its weight: of a transposed a.
///                   A table may round the sums of one call to c's type before it adds them
/// With round_a and round_b (both or neither; not of fp16), elements x of that operand count as s q:
/// q is x (1 / s), in fp32, in that format, to nearest even, and s the operand's largest magnitude
/// over the format's largest number, at least 2^-126 (1 of zeros). An operand that is not finite
/// makes c NaN. row_sums are those of a as it is.
struct GemmArgs {
  Tensor a;       ///< [M, K], or [K, M] when transpose_a
  Tensor b;       ///< [K, N], or [N, K] when transpose_b
  Tensor c;       ///< [M, N]
  Tensor addend;  ///< [M, N] of c's type and stride, beside it; or empty
  Tensor bias;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  Activation activation = Activation::none;  ///< f
  Tensor activated;                          ///< [M, N] of c's type, both side by side; or empty
  Tensor preactivation;                      ///< likewise
  Tensor row_sums;                           ///< any [M], or empty
  bool accumulate_sums = false;
  Float8 round_a = Float8::none, round_b = Float8::none;
};

/// out [C] = sum over rows of x [R, C] (+ out when `accumulate`); x, out any. Sums are fp32 and
/// rounded once.
struct ColumnSumArgs {
  Tensor x, out;
  bool accumulate = false;
};

}  // namespace espalier::kernels
