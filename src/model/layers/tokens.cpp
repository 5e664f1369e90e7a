#include "src/model/layers/tokens.h"

#include "src/model/layers/dropout.h"
#include "src/model/layers/images.h"

namespace espalier::model {

PatchEmbedding::PatchEmbedding(std::string name, const Options& options)
    : name_(std::move(name)), convolution_(name_, options.convolution), first_(options.first) {}

std::vector<sparse::ParameterSpec> PatchEmbedding::parameters() const {
  std::vector<sparse::ParameterSpec> specs = convolution_.parameters();
  specs.push_back({.name = name_ + ".position",
                   .shape = Shape{tokens(), width()},
                   .initial = sparse::Initial::normal,
                   .deviation = 0.02F,
                   .decay = true,
                   .width = width()});
  return specs;
}

void PatchEmbedding::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  store_ = &store;
  convolution_.bind(store, kernels);
  position_ = &store.find(name_ + ".position");
}

TensorSpec PatchEmbedding::output(int64_t samples, DType /*dtype*/) const {
  return {.dtype = DType::fp32, .shape = Shape{samples, tokens(), width()}};
}

Tensor PatchEmbedding::forward(Pass& pass, const Tensor& x) {
  const Tensor from =
      first_ ? input_pixels(pass, convolution_.in()) : pixels_of(x, convolution_.in());
  const Tensor out =
      pass.tape.push("residual stream", DType::fp32, output(pass.samples, pass.dtype).shape);
  const Tensor rows = pixels_of(out, width());
  convolution_.forward(pass, from, rows);
  for (int64_t first = 0; first < rows.rows(); first += tokens()) {
    pass.kernels.cast(
        pass.stream,
        {.x = position_->dense, .y = rows.row_range(first, tokens()), .accumulate = true});
  }
  apply_dropout(pass, name_, out, out);
  if (pass.training) {
    pass.tape.save(this, from);
  }
  return out;
}

Tensor PatchEmbedding::backward(Pass& pass, const Tensor& dy) {
  const auto& x = pass.tape.saved<Tensor>(this);
  apply_dropout(pass, name_, dy, dy);
  const int64_t of_sample = tokens() * width();
  pass.kernels.column_sum(pass.stream,
                          {.x = dy.reshaped({dy.count() / of_sample, of_sample}),
                           .out = store_->full_gradient(*position_).reshaped({of_sample}),
                           .accumulate = pass.accumulate});
  const Tensor dx = first_ ? Tensor() : pass.tape.push("images gradient", pass.dtype, x.shape);
  const Tape::Scope temporaries(pass.tape);
  Tensor gradient = pixels_of(dy, width());
  if (pass.dtype != DType::fp32) {
    const Tensor narrow = pass.tape.push("patch gradient", pass.dtype, gradient.shape);
    pass.kernels.cast(pass.stream, {.x = gradient, .y = narrow});
    gradient = narrow;
  }
  convolution_.backward_weight(pass, x, gradient, pass.accumulate);
  if (!first_) {
    convolution_.backward_input(pass, gradient, dx);
  }
  return dx;
}

TokenMean::TokenMean(std::string name, const Options& options)
    : name_(std::move(name)),
      options_(options),
      norm_(options.norm, name_ + ".norm", options.width) {}

void TokenMean::bind(sparse::Store& store, const kernels::Kernels& /*kernels*/) {
  norm_.bind(store);
}

TensorSpec TokenMean::output(int64_t samples, DType dtype) const {
  return {.dtype = dtype, .shape = image_shape(samples, 1, options_.width, options_.flat)};
}

Tensor TokenMean::forward(Pass& pass, const Tensor& x) {
  const Tensor result =
      pass.tape.push("images", pass.dtype, output(pass.samples, pass.dtype).shape);
  const Norm::Saved saved = norm_.prepare(pass, x);
  {
    const Tape::Scope temporaries(pass.tape);
    const Tensor normed = pass.tape.push("norm", pass.dtype, pixels_of(x, options_.width).shape);
    norm_.forward(pass, saved, normed);
    pass.kernels.pool(pass.stream, {.window = window(),
                                    .kind = kernels::Pool::mean,
                                    .x = normed,
                                    .y = pixels_of(result, options_.width),
                                    .from = {}});
  }
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return result;
}

Tensor TokenMean::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Norm::Saved>(this);
  const Tensor dx = pass.tape.push("residual gradient", DType::fp32, saved.x.shape);
  const Tape::Scope temporaries(pass.tape);
  const Tensor dnormed =
      pass.tape.push("norm gradient", pass.dtype, pixels_of(saved.x, options_.width).shape);
  pass.kernels.pool_backward(pass.stream, {.window = window(),
                                           .kind = kernels::Pool::mean,
                                           .dy = pixels_of(dy, options_.width),
                                           .from = {},
                                           .dx = dnormed});
  pass.kernels.fill(pass.stream, {.x = dx});
  norm_.backward(pass, saved, dnormed, dx);
  return dx;
}

}  // namespace espalier::model
