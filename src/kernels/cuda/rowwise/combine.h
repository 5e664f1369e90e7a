#pragma once
// Sums over rows in two steps: blocks sum parts of the rows into `shares` in the workspace; then
// the shares are added in a fixed order. The division into parts depends on the shape alone.
#include "src/kernels/cuda/simt/elements.h"

namespace espalier::kernels::ESPALIER_GPU {

/// out[c] (+)= sum over p < parts of shares[p stride + c], c < cols; rounded once. With `more`,
/// also more[c] (+)= the sum of shares[p stride + cols + c].
struct CombineArgs {
  const float* shares;
  int64_t parts, stride, cols;
  Elements out;
  bool accumulate;
  Elements more{};
};
void combine_shares(Stream& stream, const CombineArgs& args);

}  // namespace espalier::kernels::ESPALIER_GPU
