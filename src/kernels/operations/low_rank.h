#pragma once
// Factors of PowerSGD.
#include <cstdint>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// Makes the rows of x, fp32 [r, n], orthonormal in order: modified Gram-Schmidt, twice, in double.
/// A row that depends on those before it (remainder at most 2^-18 of its length) becomes zero. If
/// any number is not finite, x contains NaN afterwards.
struct OrthonormaliseArgs {
  Tensor x;
};

/// Keeps the factor of a matrix [m, n] after PowerSGD has summed its factors p, fp32 [r, m], and q,
/// fp32 [r, n].
///   all finite   row k of `factor`, fp32 [r, n], becomes row k of q. Where row k of p is zero, it
///                becomes random: element i is 2 u - 1, u uniform from word i % 4 of
///                Philox(key, k, i / 4)
///   otherwise    `factor` is unchanged; `error`, fp32 [m n], becomes zero;
///                `gradient`, any [m n], becomes NaN
struct KeepFactorArgs {
  Tensor p, q, factor, error, gradient;
  uint64_t key = 0;
};

}  // namespace espalier::kernels
