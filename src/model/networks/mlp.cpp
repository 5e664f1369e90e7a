#include "src/model/networks/mlp.h"

#include <cmath>

#include "src/model/layers/dropout.h"

namespace espalier::model {
namespace {

/// He et al. 2015: keeps the variance through rectified layers.
float he_deviation(int64_t in) { return std::sqrt(2.0F / static_cast<float>(in)); }

}  // namespace

Hidden::Hidden(std::string name, int64_t in, int64_t out, bool first)
    : name_(std::move(name)),
      linear_(name_, in, out, {.deviation = he_deviation(in)}),
      first_(first) {}

void Hidden::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  linear_.bind(store, kernels);
}

Tensor Hidden::forward(Pass& pass, const Tensor& x) {
  Saved saved{.x = x, .y = {}};
  if (first_) {
    saved.x = pass.tape.push("inputs", pass.dtype, pass.inputs.shape);
    pass.kernels.cast(pass.stream, {.x = pass.inputs, .y = saved.x});
  }
  const Shape shape{saved.x.rows(), linear_.out()};
  saved.y = pass.tape.push("hidden", pass.dtype, shape);
  linear_.forward(pass, saved.x, saved.y);
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
  if (first_) {
    return {};
  }
  const Tensor dx = pass.tape.push("hidden gradient", pass.dtype, saved.x.shape);
  linear_.backward_input(pass, dy, dx);
  return dx;
}

Classifier::Classifier(int64_t in, int64_t classes)
    : linear_("classifier", in, classes, {.deviation = he_deviation(in), .prunable = false}) {}

void Classifier::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  linear_.bind(store, kernels);
}

Tensor Classifier::forward(Pass& pass, const Tensor& x) {
  const Tensor scores = logits(pass, x);
  Saved saved{.x = x, .dlogits = {}};
  if (pass.training) {
    saved.dlogits = pass.tape.push("logits gradient", pass.dtype, scores.shape);
  }
  pass.kernels.cross_entropy(pass.stream, {.logits = scores,
                                           .targets = pass.targets,
                                           .losses = pass.losses,
                                           .dlogits = saved.dlogits,
                                           .scale = pass.loss_scale});
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return {};
}

Tensor Classifier::backward(Pass& pass, const Tensor& /*dy*/) {
  const auto& saved = pass.tape.saved<Saved>(this);
  linear_.backward_weight(pass, saved.x, saved.dlogits, pass.accumulate);
  const Tensor dx = pass.tape.push("hidden gradient", pass.dtype, saved.x.shape);
  linear_.backward_input(pass, saved.dlogits, dx);
  return dx;
}

Tensor Classifier::logits(Pass& pass, const Tensor& x) {
  const Tensor out = pass.tape.push("logits", DType::fp32, Shape{x.rows(), linear_.out()});
  linear_.forward(pass, x, out);
  return out;
}

std::vector<std::unique_ptr<Layer>> make_mlp(const MlpShape& shape) {
  std::vector<std::unique_ptr<Layer>> layers;
  int64_t in = shape.features;
  for (size_t i = 0; i < shape.hidden.size(); ++i) {
    layers.push_back(
        std::make_unique<Hidden>(fmt::format("hidden.{}", i), in, shape.hidden[i], i == 0));
    in = shape.hidden[i];
  }
  layers.push_back(std::make_unique<Classifier>(in, shape.classes));
  return layers;
}

}  // namespace espalier::model
