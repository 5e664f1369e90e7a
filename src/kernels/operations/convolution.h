#pragma once
// Convolutions with a dense weight, of whole images (operations/window.h). W [out, extent² in]: a
// row has the window's places in order, each with its channels.
//
//   y = patches(x) Wᵀ + b       dx = the adjoint applied to dy       dW = dyᵀ patches(x)
//
// x, dx [B pixels, in], y, dy [B out_pixels, out], side by side, of the weight's type (any). Sums
// are fp32 and rounded once.
#include <cstdint>

#include "src/kernels/operations/window.h"

namespace espalier::kernels {

struct ConvolutionArgs {
  Window window;
  Tensor x, weight;
  Tensor bias;  ///< fp32 [out], or empty
  Tensor y;
};

/// Overwrites dx.
struct ConvolutionInputArgs {
  Window window;
  Tensor dy, weight, dx;
};

/// Overwrites dweight, fp32 [out, extent² in].
struct ConvolutionWeightArgs {
  Window window;
  Tensor x, dy, dweight;
};

}  // namespace espalier::kernels
