#include "src/model/layers/images.h"

namespace espalier::model {
namespace {

/// Images of `channels` each: [samples, pixels, channels], or [samples, pixels channels] if `flat`.
Shape shape_of(int64_t samples, int64_t pixels, int64_t channels, bool flat) {
  return flat ? Shape{samples, pixels * channels} : Shape{samples, pixels, channels};
}

/// The same numbers as a matrix of pixels.
Tensor pixels_of(const Tensor& images, int64_t channels) {
  return images.reshaped({images.count() / channels, channels});
}

/// pass.inputs in the compute type, as a matrix of pixels.
Tensor inputs_of(Pass& pass, int64_t channels) {
  const Tensor inputs = pass.tape.push("inputs", pass.dtype, pass.inputs.shape);
  pass.kernels.cast(pass.stream, {.x = pass.inputs, .y = inputs});
  return pixels_of(inputs, channels);
}

}  // namespace

RectifiedConvolution::RectifiedConvolution(std::string name, const Options& options)
    : name_(std::move(name)),
      convolution_(name_, options.convolution),
      first_(options.first),
      flat_(options.flat) {}

void RectifiedConvolution::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  convolution_.bind(store, kernels);
}

TensorSpec RectifiedConvolution::output(int64_t samples, DType dtype) const {
  return {
      .dtype = dtype,
      .shape = shape_of(samples, convolution_.window().out_pixels(), convolution_.out(), flat_)};
}

Tensor RectifiedConvolution::forward(Pass& pass, const Tensor& x) {
  Saved saved{.x = first_ ? inputs_of(pass, convolution_.in()) : x, .y = {}};
  const Tensor result =
      pass.tape.push("images", pass.dtype, output(pass.samples, pass.dtype).shape);
  saved.y = pixels_of(result, convolution_.out());
  convolution_.forward(pass, saved.x, saved.y);
  pass.kernels.activation(pass.stream,
                          {.kind = kernels::Activation::relu, .x = saved.y, .y = saved.y});
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return result;
}

Tensor RectifiedConvolution::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Saved>(this);
  const Tensor gradient = pixels_of(dy, convolution_.out());
  pass.kernels.activation_backward(
      pass.stream,
      {.kind = kernels::Activation::relu, .dy = gradient, .x = saved.y, .dx = gradient});
  convolution_.backward_weight(pass, saved.x, gradient, pass.accumulate);
  if (first_) {
    return {};
  }
  const Tensor dx = pass.tape.push("images gradient", pass.dtype, saved.x.shape);
  convolution_.backward_input(pass, gradient, dx);
  return dx;
}

Pooling::Pooling(std::string name, const Options& options)
    : name_(std::move(name)), options_(options) {}

TensorSpec Pooling::output(int64_t samples, DType dtype) const {
  return {
      .dtype = dtype,
      .shape = shape_of(samples, options_.window.out_pixels(), options_.channels, options_.flat)};
}

Tensor Pooling::forward(Pass& pass, const Tensor& x) {
  Saved saved{.x = options_.first ? inputs_of(pass, options_.channels) : x, .from = {}};
  const Tensor result =
      pass.tape.push("images", pass.dtype, output(pass.samples, pass.dtype).shape);
  const Tensor y = pixels_of(result, options_.channels);
  if (options_.kind == kernels::Pool::max) {
    saved.from = pass.tape.push("places of maxima", DType::uint8, y.shape);
  }
  pass.kernels.pool(
      pass.stream,
      {.window = options_.window, .kind = options_.kind, .x = saved.x, .y = y, .from = saved.from});
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return result;
}

Tensor Pooling::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Saved>(this);
  if (options_.first) {
    return {};
  }
  const Tensor dx = pass.tape.push("images gradient", pass.dtype, saved.x.shape);
  pass.kernels.pool_backward(pass.stream, {.window = options_.window,
                                           .kind = options_.kind,
                                           .dy = pixels_of(dy, options_.channels),
                                           .from = saved.from,
                                           .dx = dx});
  return dx;
}

}  // namespace espalier::model
