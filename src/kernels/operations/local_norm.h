#pragma once
// Local response normalisation (Krizhevsky, Sutskever and Hinton, NeurIPS 2012): each number of a
// pixel by the squares of its neighbours in the list of channels. x [R, C]: R pixels
// (operations/window.h). With h = (extent - 1) / 2; channels outside of [0, C) count as zero:
//
//   scale_c = k + alpha / extent (sum of x_j² over j = c - h … c + h)
//   forward    y_c = x_c scale_c^(-3/4)
//   backward   dx_c = dy_c scale_c^(-3/4)
//                     - 3/2 alpha / extent x_c (sum of dy_j x_j scale_j^(-7/4) over the same j)
//
// The exponent, 3/4, is that of all published networks: it takes two square roots.
#include <cstdint>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// Defaults: those of Caffe and of torch.nn.LocalResponseNorm.
struct LocalNorm {
  static constexpr int64_t kLargest = 31;
  int64_t extent = 5;  ///< channels, odd, up to kLargest
  float alpha = 1e-4F;
  float k = 1;

  [[gnu::always_inline]] int64_t half() const { return (extent - 1) / 2; }
  [[gnu::always_inline]] float share() const { return alpha / static_cast<float>(extent); }
};

/// x any [R, C]; overwrites y, which is like x and not x.
struct LocalNormArgs {
  LocalNorm norm;
  Tensor x, y;
};

/// dy, x any [R, C], one type; overwrites dx, which is like x and neither of them.
struct LocalNormBackwardArgs {
  LocalNorm norm;
  Tensor dy, x, dx;
};

}  // namespace espalier::kernels
