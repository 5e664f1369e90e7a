#pragma once
// Element-wise operations: dropout, conversions, sums of few arrays.
#include <cstdint>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// y = x * keep / (1 - p), keep drawn by Philox(key, element index + offset); any; y may be x. The
/// same call with the same key is its own backward.
struct DropoutArgs {
  Tensor x, y;
  float probability = 0;
  uint64_t key = 0;
  int64_t offset = 0;
};

/// y = x converted; fp32 from and to any. With `accumulate`, y += x.
struct CastArgs {
  Tensor x, y;
  bool accumulate = false;
};

/// y = ((x[0] + x[1]) + x[2]) + …: sums the rows of x [p, n] in this order, in fp32, rounded once;
/// any, one type. Row `mine` is read from y [n] instead of x.
struct OrderedSumArgs {
  Tensor x, y;
  int64_t mine = 0;
};

/// y = a - b, fp32. With `finite`, non-finite differences become zero. A non-finite `factor`
/// (UpdateArgs) makes y zero. y may be a or b.
struct DifferenceArgs {
  Tensor a, b, y;
  bool finite = false;
  Tensor factor;  ///< fp32 [1], or empty
};

/// x = value; any type.
struct FillArgs {
  Tensor x;
  float value = 0;
};

}  // namespace espalier::kernels
