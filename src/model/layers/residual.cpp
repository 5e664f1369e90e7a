#include "src/model/layers/residual.h"

#include "src/model/layers/dropout.h"

namespace espalier::model {
namespace {

void append(std::vector<sparse::ParameterSpec>& specs,
            const std::vector<sparse::ParameterSpec>& more) {
  specs.insert(specs.end(), more.begin(), more.end());
}

/// Pixels after `convolution` of images of x.
Shape shape_after(const Convolution& convolution, const Tensor& x) {
  const kernels::Window& window = convolution.window();
  return {x.rows() / window.pixels() * window.out_pixels(), convolution.out()};
}

void add_to(Pass& pass, const Tensor& sum, const Tensor& x) {
  pass.kernels.cast(pass.stream, {.x = x, .y = sum, .accumulate = true});
}

Convolution::Options without_bias(Convolution::Options options) {
  options.linear.bias = false;
  return options;
}

}  // namespace

ResidualBlock::ResidualBlock(std::string name, const Options& options)
    : name_(std::move(name)), flat_(options.flat) {
  for (size_t i = 0; i < options.branch.size(); ++i) {
    branch_.emplace_back(fmt::format("{}.{}", name_, i + 1),
                         ConvolutionUnit::Options{.convolution = options.branch[i], .norm = true});
  }
  if (options.projection) {
    projection_.emplace(name_ + ".shortcut",
                        ConvolutionUnit::Options{
                            .convolution = *options.projection, .norm = true, .rectify = false});
  }
}

std::vector<sparse::ParameterSpec> ResidualBlock::parameters() const {
  std::vector<sparse::ParameterSpec> specs;
  for (const ConvolutionUnit& unit : branch_) {
    append(specs, unit.parameters());
  }
  if (projection_) {
    append(specs, projection_->parameters());
  }
  return specs;
}

void ResidualBlock::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  for (ConvolutionUnit& unit : branch_) {
    unit.bind(store, kernels);
  }
  if (projection_) {
    projection_->bind(store, kernels);
  }
}

TensorSpec ResidualBlock::output(int64_t samples, DType dtype) const {
  const Convolution& last = branch_.back().convolution();
  return {.dtype = dtype,
          .shape = image_shape(samples, last.window().out_pixels(), last.out(), flat_)};
}

Tensor ResidualBlock::forward(Pass& pass, const Tensor& x) {
  Saved saved;
  const Tensor from = pixels_of(x, branch_.front().convolution().in());
  Tensor shortcut = from;
  if (projection_) {
    shortcut = pass.tape.push("images", pass.dtype, shape_after(projection_->convolution(), from));
    saved.projection = projection_->forward(pass, from, {}, shortcut);
  }
  Tensor y = from;
  for (ConvolutionUnit& unit : branch_) {
    const bool last = &unit == &branch_.back();
    const Tensor next = pass.tape.push("images", pass.dtype, shape_after(unit.convolution(), y));
    saved.branch.push_back(unit.forward(pass, y, last ? shortcut : Tensor(), next));
    y = next;
  }
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return y.reshaped(output(pass.samples, pass.dtype).shape);
}

Tensor ResidualBlock::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Saved>(this);
  const Tensor& x = saved.branch.front().x;
  const Tensor dx = pass.tape.push("images gradient", pass.dtype, x.shape);
  const Tape::Scope scope(pass.tape);
  const Tensor at_sum = pixels_of(dy, branch_.back().convolution().out());
  Tensor gradient = at_sum;
  for (size_t i = branch_.size(); i-- > 0;) {  // the last unit leaves the sum's gradient in at_sum
    const Tensor next =
        i == 0 ? dx : pass.tape.push("images gradient", pass.dtype, saved.branch[i].x.shape);
    branch_[i].backward(pass, saved.branch[i], gradient, next);
    gradient = next;
  }
  if (!projection_) {
    add_to(pass, dx, at_sum);
    return dx;
  }
  const Tensor by_shortcut = pass.tape.push("images gradient", pass.dtype, x.shape);
  projection_->backward(pass, saved.projection, at_sum, by_shortcut);
  add_to(pass, dx, by_shortcut);
  return dx;
}

WideBlock::WideBlock(std::string name, const Options& options)
    : name_(std::move(name)),
      norm1_(name_ + ".norm1", options.first.in),
      norm2_(name_ + ".norm2", options.first.out),
      conv1_(name_ + ".conv1", without_bias(options.first)),
      conv2_(name_ + ".conv2", without_bias(options.second)),
      flat_(options.flat) {
  if (options.projection) {
    projection_.emplace(name_ + ".shortcut", without_bias(*options.projection));
  }
}

std::vector<sparse::ParameterSpec> WideBlock::parameters() const {
  std::vector<sparse::ParameterSpec> specs = norm1_.parameters();
  append(specs, conv1_.parameters());
  append(specs, norm2_.parameters());
  append(specs, conv2_.parameters());
  if (projection_) {
    append(specs, projection_->parameters());
  }
  return specs;
}

void WideBlock::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  norm1_.bind(store);
  norm2_.bind(store);
  conv1_.bind(store, kernels);
  conv2_.bind(store, kernels);
  if (projection_) {
    projection_->bind(store, kernels);
  }
}

TensorSpec WideBlock::output(int64_t samples, DType dtype) const {
  return {.dtype = dtype,
          .shape = image_shape(samples, conv2_.window().out_pixels(), conv2_.out(), flat_)};
}

Tensor WideBlock::forward(Pass& pass, const Tensor& x) {
  const Tensor from = pixels_of(x, conv1_.in());
  const auto images = [&](const Shape& shape) {
    return pass.tape.push("images", pass.dtype, shape);
  };
  Saved saved{.norm1 = norm1_.prepare(pass, from), .norm2 = {}, .y1 = images(from.shape), .y2 = {}};
  norm1_.forward(pass, saved.norm1, {.y = saved.y1, .addend = {}, .rectify = true});
  const Tensor middle = images(shape_after(conv1_, from));
  conv1_.forward(pass, saved.y1, middle);
  saved.norm2 = norm2_.prepare(pass, middle);
  saved.y2 = images(middle.shape);
  norm2_.forward(pass, saved.norm2, {.y = saved.y2, .addend = {}, .rectify = true});
  apply_dropout(pass, name_, saved.y2, saved.y2);
  const Tensor y = images(shape_after(conv2_, middle));
  conv2_.forward(pass, saved.y2, y);
  if (projection_) {
    const Tape::Scope scope(pass.tape);
    const Tensor shortcut = images(y.shape);
    projection_->forward(pass, saved.y1, shortcut);
    add_to(pass, y, shortcut);
  } else {
    add_to(pass, y, from);
  }
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return y.reshaped(output(pass.samples, pass.dtype).shape);
}

Tensor WideBlock::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Saved>(this);
  const Tensor dx = pass.tape.push("images gradient", pass.dtype, saved.y1.shape);
  const Tape::Scope scope(pass.tape);
  const Tensor at_sum = pixels_of(dy, conv2_.out());
  const Tensor middle = pass.tape.push("images gradient", pass.dtype, saved.y2.shape);
  conv2_.backward_weight(pass, saved.y2, at_sum, pass.accumulate);
  conv2_.backward_input(pass, at_sum, middle);
  // Where an element was dropped y2 is zero, and so is the rectifier's slope.
  apply_dropout(pass, name_, middle, middle);
  norm2_.backward(pass, saved.norm2, saved.y2, middle, middle);
  conv1_.backward_weight(pass, saved.y1, middle, pass.accumulate);
  conv1_.backward_input(pass, middle, dx);
  if (projection_) {
    const Tensor by_shortcut = pass.tape.push("images gradient", pass.dtype, dx.shape);
    projection_->backward_weight(pass, saved.y1, at_sum, pass.accumulate);
    projection_->backward_input(pass, at_sum, by_shortcut);
    add_to(pass, dx, by_shortcut);
  }
  norm1_.backward(pass, saved.norm1, saved.y1, dx, dx);
  if (!projection_) {
    add_to(pass, dx, at_sum);
  }
  return dx;
}

}  // namespace espalier::model
