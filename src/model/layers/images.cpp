#include "src/model/layers/images.h"

namespace espalier::model {

Shape image_shape(int64_t samples, int64_t pixels, int64_t channels, bool flat) {
  return flat ? Shape{samples, pixels * channels} : Shape{samples, pixels, channels};
}

Tensor pixels_of(const Tensor& images, int64_t channels) {
  return images.reshaped({images.count() / channels, channels});
}

Tensor input_pixels(Pass& pass, int64_t channels) {
  const Tensor inputs = pass.tape.push("inputs", pass.dtype, pass.inputs.shape);
  pass.kernels.cast(pass.stream, {.x = pass.inputs, .y = inputs});
  return pixels_of(inputs, channels);
}

ConvolutionLayer::ConvolutionLayer(std::string name, const Options& options)
    : name_(std::move(name)),
      unit_(name_, options.unit),
      first_(options.first),
      flat_(options.flat) {}

void ConvolutionLayer::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  unit_.bind(store, kernels);
}

TensorSpec ConvolutionLayer::output(int64_t samples, DType dtype) const {
  const int64_t pixels = convolution().window().out_pixels();
  return {.dtype = dtype, .shape = image_shape(samples, pixels, convolution().out(), flat_)};
}

Tensor ConvolutionLayer::forward(Pass& pass, const Tensor& x) {
  const Tensor from =
      first_ ? input_pixels(pass, convolution().in()) : pixels_of(x, convolution().in());
  const Tensor result =
      pass.tape.push("images", pass.dtype, output(pass.samples, pass.dtype).shape);
  const auto saved = unit_.forward(pass, from, {}, pixels_of(result, convolution().out()));
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return result;
}

Tensor ConvolutionLayer::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<ConvolutionUnit::Saved>(this);
  const Tensor dx =
      first_ ? Tensor() : pass.tape.push("images gradient", pass.dtype, saved.x.shape);
  unit_.backward(pass, saved, pixels_of(dy, convolution().out()), dx);
  return dx;
}

TensorSpec NormLayer::output(int64_t samples, DType dtype) const {
  return {.dtype = dtype,
          .shape = image_shape(samples, options_.pixels, options_.channels, options_.flat)};
}

Tensor NormLayer::forward(Pass& pass, const Tensor& x) {
  const Tensor from =
      options_.first ? input_pixels(pass, options_.channels) : pixels_of(x, options_.channels);
  const Tensor result =
      pass.tape.push("images", pass.dtype, output(pass.samples, pass.dtype).shape);
  const Saved saved{.norm = norm_.prepare(pass, from), .y = pixels_of(result, options_.channels)};
  norm_.forward(pass, saved.norm, {.y = saved.y, .addend = {}, .rectify = true});
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return result;
}

Tensor NormLayer::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Saved>(this);
  const Tensor gradient = pixels_of(dy, options_.channels);
  norm_.backward(pass, saved.norm, saved.y, gradient, gradient);
  return options_.first ? Tensor() : gradient;
}

TensorSpec LocalNormLayer::output(int64_t samples, DType dtype) const {
  return {.dtype = dtype,
          .shape = image_shape(samples, options_.pixels, options_.channels, options_.flat)};
}

Tensor LocalNormLayer::forward(Pass& pass, const Tensor& x) {
  const Saved saved{.x = options_.first ? input_pixels(pass, options_.channels)
                                        : pixels_of(x, options_.channels)};
  const Tensor result =
      pass.tape.push("images", pass.dtype, output(pass.samples, pass.dtype).shape);
  pass.kernels.local_norm(
      pass.stream,
      {.norm = options_.norm, .x = saved.x, .y = pixels_of(result, options_.channels)});
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return result;
}

Tensor LocalNormLayer::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Saved>(this);
  if (options_.first) {
    return {};
  }
  const Tensor dx = pass.tape.push("images gradient", pass.dtype, saved.x.shape);
  pass.kernels.local_norm_backward(
      pass.stream,
      {.norm = options_.norm, .dy = pixels_of(dy, options_.channels), .x = saved.x, .dx = dx});
  return dx;
}

Pooling::Pooling(std::string name, const Options& options)
    : name_(std::move(name)), options_(options) {}

TensorSpec Pooling::output(int64_t samples, DType dtype) const {
  return {.dtype = dtype,
          .shape =
              image_shape(samples, options_.window.out_pixels(), options_.channels, options_.flat)};
}

Tensor Pooling::forward(Pass& pass, const Tensor& x) {
  Saved saved{
      .x = options_.first ? input_pixels(pass, options_.channels) : pixels_of(x, options_.channels),
      .from = {}};
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
