#include "src/kernels/operations/batch_norm.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

/// Pixels of one type, side by side, at least one.
void is_pixels(const char* name, const Tensor& t, const Tensor& x) {
  is_any("x", x);
  require(x.rows() > 0, "batch norm needs a pixel");
  is_same_type(name, t, x);
  is_matrix(name, t, x.rows(), x.cols());
  is_flat(name, t, x.count());
}

void are_statistics(const Tensor& mean, const Tensor& variance, int64_t channels) {
  is_fp32_vector("mean", mean, channels);
  is_fp32_vector("variance", variance, channels);
}

}  // namespace

void verify(const BatchNormStatisticsArgs& args) {
  is_pixels("x", args.x, args.x);
  are_statistics(args.mean, args.variance, args.x.cols());
}

DryCount cost(const BatchNormStatisticsArgs& args) {
  return {3 * elements(args.x), traffic(args.x, args.mean, args.variance)};
}

void verify(const BatchNormArgs& args) {
  const int64_t channels = args.x.cols();
  is_pixels("x", args.x, args.x);
  is_pixels("y", args.y, args.x);
  if (args.addend) {
    is_pixels("addend", args.addend, args.x);
  }
  are_statistics(args.mean, args.variance, channels);
  is_fp32_vector("weight", args.weight, channels);
  is_fp32_vector("bias", args.bias, channels);
}

DryCount cost(const BatchNormArgs& args) {
  return {(args.addend ? 5 : 4) * elements(args.x) + (args.rectify ? elements(args.x) : 0),
          traffic(args.x, args.addend, args.y, args.mean, args.variance, args.weight, args.bias)};
}

void verify(const BatchNormSumsArgs& args) {
  const int64_t channels = args.x.cols();
  is_pixels("x", args.x, args.x);
  is_pixels("dy", args.dy, args.x);
  if (args.y) {
    is_pixels("y", args.y, args.x);
  }
  are_statistics(args.mean, args.variance, channels);
  is_fp32_vector("sums", args.sums, 2 * channels);
  is_any_vector("dweight", args.dweight, channels);
  is_any_vector("dbias", args.dbias, channels);
}

DryCount cost(const BatchNormSumsArgs& args) {
  return {5 * elements(args.x), traffic(args.dy, args.x, args.y, args.mean, args.variance,
                                        args.sums, args.dweight, args.dbias) +
                                    (args.y ? traffic(args.dy) : 0)};
}

void verify(const BatchNormBackwardArgs& args) {
  const int64_t channels = args.x.cols();
  is_pixels("x", args.x, args.x);
  is_pixels("g", args.g, args.x);
  is_pixels("dx", args.dx, args.x);
  are_statistics(args.mean, args.variance, channels);
  is_fp32_vector("weight", args.weight, channels);
  is_fp32_vector("sums", args.sums, 2 * channels);
  require(args.count >= args.x.rows(), "sums are over at least these pixels", args.count,
          args.x.rows());
}

DryCount cost(const BatchNormBackwardArgs& args) {
  return {6 * elements(args.x),
          traffic(args.g, args.x, args.dx, args.mean, args.variance, args.weight, args.sums)};
}

void verify(const BatchNormAverageArgs& args) {
  const int64_t channels = args.mean.count();
  are_statistics(args.mean, args.variance, channels);
  are_statistics(args.average_mean, args.average_variance, channels);
  is_any_vector("dmean", args.dmean, channels);
  is_any_vector("dvariance", args.dvariance, channels);
  is_same_type("dvariance", args.dvariance, args.dmean);
  require(args.count > 1, "a variance without bias needs two pixels", args.count);
}

DryCount cost(const BatchNormAverageArgs& args) {
  return {5 * elements(args.mean), traffic(args.mean, args.variance, args.average_mean,
                                           args.average_variance, args.dmean, args.dvariance)};
}

}  // namespace espalier::kernels
