#include "src/model/layers/feed_forward.h"

#include <algorithm>
#include <array>

namespace espalier::model {
namespace {

using kernels::Activation;

constexpr ActivationKind kActivations[]{
    {.name = "gelu", .help = "x Phi(x), Phi by tanh (GPT-2)", .kind = Activation::gelu},
    {.name = "gelu_erf", .help = "x Phi(x)", .kind = Activation::gelu_erf},
    {.name = "relu", .help = "max(x, 0)", .kind = Activation::relu},
    {.name = "silu", .help = "x / (1 + exp(-x))", .kind = Activation::silu}};

}  // namespace

Registry<ActivationKind> activations() { return pointers_into<kActivations>(); }

Activation activation_by_name(std::string_view name) {
  return find(activations(), "model.family:activation", name).kind;
}

std::string_view name_of(Activation kind) {
  return std::ranges::find(kActivations, kind, &ActivationKind::kind)->name;
}

FeedForward::FeedForward(const std::string& name, const Options& options)
    : options_(options),
      expand_(name + (options.gated ? ".up" : ".expand"), options.width, options.hidden,
              {.bias = options.bias, .width = options.width, .rows = options.tokens}),
      contract_(name + ".contract", options.hidden, options.width,
                into_residual({.width = options.width,
                               .tokens = options.tokens,
                               .blocks = options.blocks,
                               .bias = options.bias})) {
  if (options.gated) {
    gate_.emplace(
        name + ".gate", options.width, options.hidden,
        Linear::Options{.bias = options.bias, .width = options.width, .rows = options.tokens});
  }
}

std::vector<sparse::ParameterSpec> FeedForward::parameters() const {
  std::vector<sparse::ParameterSpec> all =
      gate_ ? gate_->parameters() : std::vector<sparse::ParameterSpec>();
  for (const Linear* linear : {&expand_, &contract_}) {
    const std::vector<sparse::ParameterSpec> some = linear->parameters();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void FeedForward::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  if (gate_) {
    gate_->bind(store, kernels);
  }
  expand_.bind(store, kernels);
  contract_.bind(store, kernels);
}

FeedForward::Saved FeedForward::prepare(Pass& pass, int64_t rows) const {
  const Shape shape{rows, options_.hidden};
  Saved saved{.expanded = pass.tape.push("mlp expanded", pass.dtype, shape), .gate = {}};
  if (gate_) {
    saved.gate = pass.tape.push("mlp gate", pass.dtype, shape);
  }
  return saved;
}

Tensor FeedForward::push_activated(Pass& pass, int64_t rows) const {
  return pass.tape.push("mlp activated", pass.dtype, Shape{rows, options_.hidden});
}

void FeedForward::expand(Pass& pass, const Tensor& x, const Saved& saved, const Tensor& activated) {
  if (gate_) {
    gate_->forward(pass, {.x = x, .y = saved.gate});
    expand_.forward(pass, {.x = x, .y = saved.expanded});
    if (activated) {
      activate(pass, saved, activated);
    }
  } else if (activated) {
    expand_.forward(
        pass,
        {.x = x, .y = saved.expanded, .activation = options_.activation, .activated = activated});
  } else {
    expand_.forward(pass, {.x = x, .y = saved.expanded});
  }
}

void FeedForward::activate(Pass& pass, const Saved& saved, const Tensor& activated) const {
  if (gate_) {
    pass.kernels.gated_activation(
        pass.stream,
        {.kind = options_.activation, .gate = saved.gate, .up = saved.expanded, .y = activated});
  } else {
    pass.kernels.activation(pass.stream,
                            {.kind = options_.activation, .x = saved.expanded, .y = activated});
  }
}

void FeedForward::backward_contract(Pass& pass, const Saved& saved, const Tensor& activated,
                                    const Tensor& dy) {
  contract_.backward_weight(pass, activated, dy, pass.accumulate);
  if (gate_) {
    contract_.backward_input(pass, {.dy = dy, .dx = activated});
    pass.kernels.gated_activation_backward(pass.stream, {.kind = options_.activation,
                                                         .dy = activated,
                                                         .gate = saved.gate,
                                                         .up = saved.expanded,
                                                         .dgate = saved.gate,
                                                         .dup = saved.expanded});
  } else {
    contract_.backward_input(pass, {.dy = dy,
                                    .dx = activated,
                                    .activation = options_.activation,
                                    .preactivation = saved.expanded});
  }
}

void FeedForward::backward_expand(Pass& pass, const Saved& saved, const Tensor& x,
                                  const Tensor& activated, const Tensor& dx) {
  if (!gate_) {
    expand_.backward_weight(pass, x, activated, pass.accumulate);
    expand_.backward_input(pass, {.dy = activated, .dx = dx});
    return;
  }
  const std::array<WeightGradient, 2> maps{
      WeightGradient{.linear = &*gate_, .dy = saved.gate},
      WeightGradient{.linear = &expand_, .dy = saved.expanded}};
  backward_weights(pass, x, maps, pass.accumulate);
  gate_->backward_input(pass, {.dy = saved.gate, .dx = dx});
  expand_.backward_input(pass, {.dy = saved.expanded, .dx = dx, .accumulate = true});
}

}  // namespace espalier::model
