#pragma once
// Factors of PowerSGD.
#include <cstdint>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// Makes the rows of x, fp32 [r, n], orthonormal, from the first on: twice modified Gram-Schmidt in
/// double. A row that depends on those before it (what is left of it is 2^-18 of its length or less)
/// becomes zero; if any number is not finite, x is NaN somewhere afterwards.
struct OrthonormaliseArgs {
  Tensor x;
};

/// What PowerSGD keeps of a matrix [m, n] when its factors p, fp32 [r, m], and q, fp32 [r, n], have
/// been summed. Where all of both is finite: row k of `factor`, fp32 [r, n], becomes that of q, or
/// where row k of p is zero numbers 2 u - 1, of the uniform u of word i % 4 of Philox(key, k, i / 4).
/// Else `factor` stays, `error`, fp32 [m n], becomes zero, and `gradient`, any [m n], NaN.
struct KeepFactorArgs {
  Tensor p, q, factor, error, gradient;
  uint64_t key = 0;
};

}  // namespace espalier::kernels
