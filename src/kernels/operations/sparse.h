#pragma once
// Products and convolutions with pruned weights: kept elements, or kept blocks.
#include "src/kernels/operations/activation.h"
#include "src/kernels/operations/window.h"
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
/// multiplied by f'(preactivation) first. A table may round the product to dx's type before that.
/// Types as above.
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

// Convolutions of whole images with the kept elements of W [out, extent² in] alone, and without
// patches in memory (dense ones: operations/convolution.h):
//
//   y = patches(x) Wᵀ + b       dx = the adjoint applied to dy       dW = dyᵀ patches(x), if kept
//
// x, dx [B pixels, in], y, dy [B out_pixels, out], any row stride. Types and sums as above.

struct SparseConvolutionArgs {
  Window window;
  SparseMatrix weight;
  Tensor x;
  Tensor bias;  ///< fp32 [out], or empty
  Tensor y;
};

/// Overwrites dx.
struct SparseConvolutionInputArgs {
  Window window;
  SparseMatrix weight;
  Tensor dy, dx;
};

/// weight.values (any) (+)= the kept elements of dW.
struct SparseConvolutionWeightArgs {
  Window window;
  SparseMatrix weight;
  Tensor dy, x;
  bool accumulate = false;
};

}  // namespace espalier::kernels
