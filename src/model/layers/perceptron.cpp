#include "src/model/layers/perceptron.h"

#include <cmath>

#include "src/model/layers/dropout.h"

namespace espalier::model {
namespace {

Tensor input_gradient(Pass& pass, Linear& linear, const Tensor& x, const Tensor& dy) {
  const Tensor dx = pass.tape.push("hidden gradient", pass.dtype, x.shape);
  linear.backward_input(pass, {.dy = dy, .dx = dx});
  return dx;
}

}  // namespace

float he_deviation(int64_t in) { return std::sqrt(2.0F / static_cast<float>(in)); }

Hidden::Hidden(std::string name, int64_t in, int64_t out, bool first)
    : name_(std::move(name)),
      linear_(name_, in, out,
              {.deviation = he_deviation(in),
               .scaling = first ? sparse::Scaling::base : sparse::Scaling::hidden,
               .width = first ? out : in,
               .deviation_by_width = !first}),
      first_(first) {}

void Hidden::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  linear_.bind(store, kernels);
}

TensorSpec Hidden::output(int64_t samples, DType dtype) const {
  return {.dtype = dtype, .shape = Shape{samples, linear_.out()}};
}

Tensor Hidden::forward(Pass& pass, const Tensor& x) {
  Saved saved{.x = x, .y = {}};
  if (first_) {
    saved.x = pass.tape.push("inputs", pass.dtype, pass.inputs.shape);
    pass.kernels.cast(pass.stream, {.x = pass.inputs, .y = saved.x});
  }
  saved.y = pass.tape.push("hidden", pass.dtype, Shape{saved.x.rows(), linear_.out()});
  linear_.forward(pass, {.x = saved.x, .y = saved.y});
  pass.kernels.activation(pass.stream,
                          {.kind = kernels::Activation::relu, .x = saved.y, .y = saved.y});
  apply_dropout(pass, name_, saved.y, saved.y);
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return saved.y;
}

Tensor Hidden::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Saved>(this);
  apply_dropout(pass, name_, dy, dy);
  // The slope at y is that at the product, except where y was dropped, and there dy is zero.
  pass.kernels.activation_backward(
      pass.stream, {.kind = kernels::Activation::relu, .dy = dy, .x = saved.y, .dx = dy});
  linear_.backward_weight(pass, saved.x, dy, pass.accumulate);
  return first_ ? Tensor() : input_gradient(pass, linear_, saved.x, dy);
}

Classifier::Classifier(int64_t in, int64_t classes)
    : linear_("classifier", in, classes,
              {.deviation = he_deviation(in),
               .prunable = false,
               .scaling = sparse::Scaling::logits,
               .deviation_by_width = true}) {}

void Classifier::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  linear_.bind(store, kernels);
}

Tensor Classifier::forward(Pass& pass, const Tensor& x) {
  const Tensor scores = logits(pass, x);
  Saved saved{.x = x, .dlogits = {}};
  if (pass.training) {
    saved.dlogits = pass.tape.push("logits gradient", pass.dtype, scores.shape);
  }
  compute_losses(pass, 0, scores, saved.dlogits);
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return {};
}

Tensor Classifier::backward(Pass& pass, const Tensor& /*dy*/) {
  const auto& saved = pass.tape.saved<Saved>(this);
  linear_.backward_weight(pass, saved.x, saved.dlogits, pass.accumulate);
  return input_gradient(pass, linear_, saved.x, saved.dlogits);
}

Tensor Classifier::logits(Pass& pass, const Tensor& x) {
  const Tensor out = pass.tape.push("logits", DType::fp32, Shape{x.rows(), linear_.out()});
  linear_.forward(pass, {.x = x, .y = out});
  return out;
}

}  // namespace espalier::model
