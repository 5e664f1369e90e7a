#pragma once
// Products with pruned weights: kept elements, or kept blocks.
#include "src/kernels/operations/activation.h"
#include "src/kernels/sparse_matrix.h"

namespace espalier::kernels {

/// y [R, N] (+)= x [R, K] Wᵀ + bias, for W [N, K]. With `activated`, also activated = f(y) of the
/// stored y, so recomputing it from y gives the same bits. x any, values of the same type; y fp32
/// or that type; bias fp32 [N] or empty; activated of x's type or empty. Products are fp32 or exact
/// pairs of bf16, sums fp32. Rows of x, y may be strided.
template <class Matrix>
struct SpmmOf {
  Matrix weight;
  Tensor x, y, bias;
  Activation activation = Activation::none;
  Tensor activated;
  bool accumulate = false;
};
using SpmmArgs = SpmmOf<SparseMatrix>;
using BlockSpmmArgs = SpmmOf<BlockMatrix>;

/// dx [R, K] (+)= dy [R, N] W; with `preactivation` (dx's shape, dy's type), the product is
/// multiplied by f'(preactivation) first. Types as above.
template <class Matrix>
struct SpmmTransposedOf {
  Matrix weight;
  Tensor dy, dx;
  Activation activation = Activation::none;
  Tensor preactivation;
  bool accumulate = false;
};
using SpmmTransposedArgs = SpmmTransposedOf<SparseMatrix>;
using BlockSpmmTransposedArgs = SpmmTransposedOf<BlockMatrix>;

/// weight.values (+)= dyᵀ x at the kept positions: the gradient of W, with its pattern. dy [R, N],
/// x [R, K] any, the same type; values any. Sums are fp32, rounded once per call.
template <class Matrix>
struct SddmmOf {
  Matrix weight;
  Tensor dy, x;
  bool accumulate = false;
};
using SddmmArgs = SddmmOf<SparseMatrix>;
using BlockSddmmArgs = SddmmOf<BlockMatrix>;

}  // namespace espalier::kernels
