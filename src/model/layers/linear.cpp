#include "src/model/layers/linear.h"

#include <cmath>

#include "src/model/key_value_cache.h"

namespace espalier::model {

using sparse::Initial;
using sparse::ParameterSpec;

Linear::Linear(const std::string& name, int64_t in, int64_t out, const Options& options)
    : weight_name_(name + ".weight"),
      bias_name_(options.bias ? name + ".bias" : ""),
      in_(in),
      out_(out),
      options_(options) {}

Linear Linear::tied_to(std::string weight_name, int64_t in, int64_t out) {
  Linear linear("", in, out, {.bias = false});
  linear.weight_name_ = std::move(weight_name);
  linear.tied_ = true;
  return linear;
}

std::vector<ParameterSpec> Linear::parameters() const {
  std::vector<ParameterSpec> specs;
  const int64_t width = options_.width > 0 ? options_.width : in_;
  if (!tied_) {
    specs.push_back({.name = weight_name_,
                     .shape = Shape{out_, in_},
                     .initial = Initial::normal,
                     .deviation = options_.deviation,
                     .prunable = options_.prunable,
                     .decay = true,
                     .scaling = options_.scaling,
                     .width = width,
                     .deviation_by_width = options_.deviation_by_width,
                     .rows = options_.rows,
                     .window = options_.window,
                     .groups = options_.groups,
                     .parts = options_.parts});
  }
  if (!bias_name_.empty()) {
    specs.push_back({.name = bias_name_, .shape = Shape{out_}, .width = width});
  }
  return specs;
}

void Linear::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  store_ = &store;
  weight_.emplace(store, kernels, store.find(weight_name_));
  bias_ = bias_name_.empty() ? nullptr : &store.find(bias_name_);
}

void Linear::report_input(const Pass& pass, const Tensor& x) const {
  if (pass.on_input != nullptr) {
    (*pass.on_input)(weight_name_, x);
  }
}

void Linear::forward(Pass& pass, sparse::Weight::Apply args) {
  report_input(pass, args.x);
  args.bias = bias();
  args.few_rows = pass.cached != nullptr && pass.cached->few_rows;
  weight_->apply(pass.stream, args);
}

void Linear::backward_input(Pass& pass, const sparse::Weight::ApplyTransposed& args) {
  weight_->apply_transposed(pass.stream, args);
}

void Linear::backward_weight(Pass& pass, const Tensor& x, const Tensor& dy, bool accumulate) {
  if (pass.deferred == nullptr) {
    weight_gradient(pass, {.dy = dy, .x = x, .accumulate = accumulate});
    return;
  }
  // Layers reuse the memory of x and dy. Copies cost 1 / out and 1 / in of the product.
  auto keep = [&pass](std::string_view name, const Tensor& tensor) {
    Tensor rows = tensor;
    rows.shape = Shape{tensor.rows(), tensor.stride};  // with the gap between rows
    const Tensor copy = pass.deferred->tape.push(name, rows.dtype, rows.shape);
    pass.kernels.cast(pass.stream, {.x = rows, .y = copy});
    return copy.column_range(0, tensor.cols());
  };
  pass.deferred->gradients.emplace_back([this, x = keep("inputs of weight parts", x),
                                         dy = keep("gradients of weight parts", dy),
                                         accumulate](Pass& later) {
    weight_gradient(later, {.dy = dy, .x = x, .accumulate = accumulate});
  });
}

void Linear::weight_gradient(Pass& pass, sparse::Weight::AccumulateGradient args) {
  args.bias_gradient = bias_gradient();
  weight_->accumulate_gradient(pass.stream, args);
}

Linear::Options into_residual(const IntoResidual& options) {
  return {.deviation = 0.02F / std::sqrt(2.0F * static_cast<float>(options.blocks)),
          .bias = options.bias,
          .width = options.width,
          .rows = options.tokens};
}

void backward_weights(Pass& pass, const Tensor& x, std::span<const WeightGradient> maps,
                      bool accumulate) {
  if (pass.deferred == nullptr || maps.size() == 1) {
    for (const WeightGradient& map : maps) {
      map.linear->backward_weight(pass, x, map.columns(), accumulate);
    }
    return;
  }
  // Layers reuse the memory of x and dy.
  const auto keep = [&pass](std::string_view name, const Tensor& tensor) {
    const Tensor copy = pass.deferred->tape.push(name, tensor.dtype, tensor.shape);
    pass.kernels.cast(pass.stream, {.x = tensor, .y = copy});
    return copy;
  };
  const Tensor inputs = keep("inputs of weight parts", x);
  Tensor original;
  WeightGradient kept;
  for (const WeightGradient& map : maps) {
    if (map.dy.data != original.data) {
      original = map.dy;
      kept.dy = keep("gradients of weight parts", original);
    }
    kept.linear = map.linear;
    kept.first = map.first;
    pass.deferred->gradients.emplace_back([kept, inputs, accumulate](Pass& later) {
      kept.linear->weight_gradient(later,
                                   {.dy = kept.columns(), .x = inputs, .accumulate = accumulate});
    });
  }
}

}  // namespace espalier::model
