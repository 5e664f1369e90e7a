#include "src/model/layers/convolution_unit.h"

namespace espalier::model {
namespace {

constexpr kernels::Activation kRelu = kernels::Activation::relu;

Convolution::Options convolution_options(const ConvolutionUnit::Options& options) {
  Convolution::Options made = options.convolution;
  made.linear.bias = !options.norm;
  return made;
}

}  // namespace

ConvolutionUnit::ConvolutionUnit(const std::string& name, const Options& options)
    : convolution_(name, convolution_options(options)), rectify_(options.rectify) {
  if (options.norm) {
    norm_.emplace(name + ".norm", options.convolution.out);
  }
}

std::vector<sparse::ParameterSpec> ConvolutionUnit::parameters() const {
  std::vector<sparse::ParameterSpec> specs = convolution_.parameters();
  if (norm_) {
    const std::vector<sparse::ParameterSpec> more = norm_->parameters();
    specs.insert(specs.end(), more.begin(), more.end());
  }
  return specs;
}

void ConvolutionUnit::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  convolution_.bind(store, kernels);
  if (norm_) {
    norm_->bind(store);
  }
}

ConvolutionUnit::Saved ConvolutionUnit::forward(Pass& pass, const Tensor& x, const Tensor& addend,
                                                const Tensor& y) {
  Saved saved{.x = x, .y = y};
  if (norm_) {
    const Tensor product = pass.tape.push("convolution", y.dtype, y.shape);
    convolution_.forward(pass, x, product);
    saved.norm = norm_->prepare(pass, product);
    norm_->forward(pass, saved.norm, {.y = y, .addend = addend, .rectify = rectify_});
    return saved;
  }
  convolution_.forward(pass, x, y);
  if (addend) {
    pass.kernels.cast(pass.stream, {.x = addend, .y = y, .accumulate = true});
  }
  if (rectify_) {
    pass.kernels.activation(pass.stream, {.kind = kRelu, .x = y, .y = y});
  }
  return saved;
}

void ConvolutionUnit::backward(Pass& pass, const Saved& saved, const Tensor& dy, const Tensor& dx) {
  const Tape::Scope scope(pass.tape);
  Tensor gradient = dy;  // at the product
  if (norm_) {
    gradient = pass.tape.push("convolution gradient", dy.dtype, dy.shape);
    norm_->backward(pass, saved.norm, rectify_ ? saved.y : Tensor(), dy, gradient);
  } else if (rectify_) {
    pass.kernels.activation_backward(pass.stream,
                                     {.kind = kRelu, .dy = dy, .x = saved.y, .dx = dy});
  }
  convolution_.backward_weight(pass, saved.x, gradient, pass.accumulate);
  if (dx) {
    convolution_.backward_input(pass, gradient, dx);
  }
}

}  // namespace espalier::model
