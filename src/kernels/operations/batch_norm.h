#pragma once
// Batch normalisation: each channel over all pixels of a micro-batch (Ioffe and Szegedy, ICML
// 2015). x [R, C]: R pixels (operations/window.h). With x^ = (x - mean) / sqrt(variance + 1e-5):
//
//   forward    y = f(x^ weight + bias + addend), f the identity or a rectifier
//   backward   g = dy, with a rectifier zero where y <= 0; g is also the addend's gradient
//              dweight = sum of g x^;  dbias = sum of g
//              dx = weight / sqrt(variance + 1e-5) (g - (dbias + x^ dweight) / R)
//
// Statistics of several replicas: the caller combines mean, variance and sums between the calls.
#include <cstdint>

#include "src/core/tensor.h"

namespace espalier::kernels {

/// Mean and variance (biased: / R) of each column of x, from sums in double. x any [R, C]; mean,
/// variance fp32 [C].
struct BatchNormStatisticsArgs {
  Tensor x, mean, variance;
};

/// y = f(x^ weight + bias + addend). x any [R, C]; mean, variance, weight, bias fp32 [C]; addend
/// like x, or empty; y like x.
struct BatchNormArgs {
  Tensor x, mean, variance, weight, bias, addend, y;
  bool rectify = false;
};

/// dy = g, in place; sums = [sum of g; sum of g x^], from sums in double. dy, x any [R, C], one
/// type; y like x, or empty without a rectifier; sums fp32 [2, C]; dweight, dbias any [C]
/// (`accumulate`: added, else overwritten).
struct BatchNormSumsArgs {
  Tensor dy, x, y, mean, variance, sums, dweight, dbias;
  bool accumulate = false;
};

/// dx = weight / sqrt(variance + 1e-5) (g - (sums[0] + x^ sums[1]) / count). g is what
/// BatchNormSumsArgs leaves in dy; count: pixels of all replicas whose sums `sums` has. dx may be
/// g.
struct BatchNormBackwardArgs {
  Tensor g, x, mean, variance, weight, sums, dx;
  int64_t count = 1;
};

/// The gradients of moving averages of the statistics (UpdateRule::average):
///   dmean (+)= share (average_mean - mean)
///   dvariance (+)= share (average_variance - variance count / (count - 1))
/// mean, variance, averages fp32 [C]; dmean, dvariance any [C], one type; count > 1 pixels.
struct BatchNormAverageArgs {
  Tensor mean, variance, average_mean, average_variance, dmean, dvariance;
  int64_t count = 2;
  float share = 1;
  bool accumulate = false;
};

}  // namespace espalier::kernels
