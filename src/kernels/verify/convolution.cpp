#include "src/kernels/operations/convolution.h"

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

void verify_images(const Window& window, const Tensor& x, const Tensor& y, const Tensor& weight) {
  const int64_t images = images_of(window, x.rows());
  is_any("x", x);
  is_flat("x", x, x.count());
  is_same_type("y", y, x);
  is_matrix("y", y, images * window.out_pixels(), weight.rows());
  is_flat("y", y, y.count());
  is_flat("weight", weight, weight.rows() * window.area() * x.cols());
  is_matrix("weight", weight, y.cols(), window.area() * x.cols());
}

/// Flops of the products: padding counts.
double products(const Tensor& y, const Tensor& weight) {
  return 2 * elements(y) * static_cast<double>(weight.cols());
}

}  // namespace

void verify(const ConvolutionArgs& args) {
  verify_images(args.window, args.x, args.y, args.weight);
  is_same_type("weight", args.weight, args.x);
  if (args.bias) {
    is_fp32_vector("bias", args.bias, args.y.cols());
  }
}

DryCount cost(const ConvolutionArgs& args) {
  return {products(args.y, args.weight) + (args.bias ? elements(args.y) : 0),
          traffic(args.x, args.weight, args.bias, args.y)};
}

void verify(const ConvolutionInputArgs& args) {
  verify_images(args.window, args.dx, args.dy, args.weight);
  is_same_type("weight", args.weight, args.dx);
}

DryCount cost(const ConvolutionInputArgs& args) {
  return {products(args.dy, args.weight), traffic(args.dy, args.weight, args.dx)};
}

void verify(const ConvolutionWeightArgs& args) {
  verify_images(args.window, args.x, args.dy, args.dweight);
  is_fp32("dweight", args.dweight);
}

DryCount cost(const ConvolutionWeightArgs& args) {
  return {products(args.dy, args.dweight), traffic(args.x, args.dy, args.dweight)};
}

}  // namespace espalier::kernels
