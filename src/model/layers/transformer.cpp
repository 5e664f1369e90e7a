#include "src/model/layers/transformer.h"

#include <cmath>
#include <optional>

#include "src/model/layers/dropout.h"

namespace espalier::model {
namespace {

constexpr auto kGelu = kernels::Activation::gelu;

/// Scope of tensors that are cheap to compute again: a training pass without recompute keeps them,
/// any other drops them at the end of the scope.
class Cheap {
 public:
  explicit Cheap(Pass& pass) {
    if (!pass.training || pass.recompute != Recompute::none) {
      drop_.emplace(pass.tape);
    }
  }
  /// The tensor to save for `pushed`; empty: recomputed.
  Tensor kept(const Tensor& pushed) const { return drop_ ? Tensor() : pushed; }

 private:
  std::optional<Tape::Scope> drop_;
};

Linear::Options into_residual(const TransformerBlock::Options& options) {
  return {.deviation = 0.02F / std::sqrt(2.0F * static_cast<float>(options.blocks)),
          .width = options.width,
          .flow = {.ends_branch = true},
          .rows = options.tokens};
}

/// out = x + dropout(linear(branch))
void add_branch(Pass& pass, Linear& linear, const Tensor& branch, const Tensor& x,
                const Tensor& out) {
  if (drops(pass)) {
    linear.forward(pass, {.x = branch, .y = out});
    apply_dropout(pass, linear.name(), out, out);
    pass.kernels.cast(pass.stream, {.x = x, .y = out, .accumulate = true});
  } else {
    linear.forward(pass, {.x = branch, .y = out, .addend = x});
  }
}

/// Whether the gradient of a branch differs from the residual stream's: rounded, or dropped out.
bool has_copy(const Pass& pass) { return pass.dtype != DType::fp32 || drops(pass); }

/// Gradient of the output of the branch's linear map, in `narrow` where it differs.
Tensor branch_gradient(Pass& pass, const Linear& linear, const Tensor& gradient,
                       const Tensor& narrow) {
  if (!has_copy(pass)) {
    return gradient;
  }
  apply_dropout(pass, linear.name(), narrow, narrow);
  return narrow;
}

}  // namespace

TransformerBlock::TransformerBlock(std::string name, const Options& options)
    : name_(std::move(name)),
      options_(options),
      norm1_(options.norm, name_ + ".norm1", options.width),
      norm2_(options.norm, name_ + ".norm2", options.width),
      qkv_(name_ + ".attention.qkv", options.width, 3 * options.width,
           {.width = options.width,
            .flow = {.begins_branch = true, .parts = 3},
            .rows = options.tokens}),
      projection_(name_ + ".attention.projection", options.width, options.width,
                  into_residual(options)),
      expand_(name_ + ".mlp.expand", options.width, options.mlp_ratio * options.width,
              {.width = options.width, .flow = {.begins_branch = true}, .rows = options.tokens}),
      contract_(name_ + ".mlp.contract", options.mlp_ratio * options.width, options.width,
                into_residual(options)) {}

std::vector<sparse::ParameterSpec> TransformerBlock::parameters() const {
  std::vector<sparse::ParameterSpec> all;
  auto add = [&all](std::vector<sparse::ParameterSpec> some) {
    all.insert(all.end(), some.begin(), some.end());
  };
  add(norm1_.parameters());
  add(qkv_.parameters());
  add(projection_.parameters());
  add(norm2_.parameters());
  add(expand_.parameters());
  add(contract_.parameters());
  return all;
}

void TransformerBlock::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  norm1_.bind(store);
  norm2_.bind(store);
  for (Linear* linear : {&qkv_, &projection_, &expand_, &contract_}) {
    linear->bind(store, kernels);
  }
}

TensorSpec TransformerBlock::output(int64_t samples, DType /*dtype*/) const {
  return {.dtype = DType::fp32, .shape = Shape{samples, options_.tokens, options_.width}};
}

Tensor TransformerBlock::forward(Pass& pass, const Tensor& x) {
  const Tensor out = pass.tape.push("residual stream", DType::fp32, x.shape);
  std::optional<Tape::Scope> temporaries;
  if (!pass.training) {
    temporaries.emplace(pass.tape);
  }
  const Saved saved = run(pass, x, out);
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return out;
}

/// Reuses memory: a tensor that is no longer needed becomes the next one.
Tensor TransformerBlock::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Saved>(this);
  const Tape::Scope temporaries(pass.tape);
  const Tensor narrow = pass.tape.push("branch gradient", pass.dtype, dy.shape);
  if (has_copy(pass)) {
    pass.kernels.cast(pass.stream, {.x = dy, .y = narrow});
  }
  mlp_backward(pass, saved, dy, narrow);
  attention_backward(pass, saved, dy, narrow);
  return dy;
}

void TransformerBlock::replay(Pass& pass, const Tensor& x) {
  pass.tape.save(this, run(pass, x, {}));
}

TransformerBlock::Saved TransformerBlock::run(Pass& pass, const Tensor& x, const Tensor& out) {
  Saved saved;
  const Tensor middle = pass.tape.push("residual stream", DType::fp32, x.shape);
  attention_forward(pass, x, middle, saved);
  mlp_forward(pass, middle, out, saved);
  return saved;
}

void TransformerBlock::attention_forward(Pass& pass, const Tensor& x, const Tensor& middle,
                                         Saved& saved) {
  const int64_t sequences = x.shape[0];
  const int64_t tokens = x.shape[1];
  saved.norm1 = norm1_.prepare(pass, x);
  saved.qkv = pass.tape.push("attention qkv", pass.dtype, Shape{sequences, tokens, qkv_.out()});
  saved.attention = pass.tape.push("attention out", pass.dtype, x.shape);
  saved.lse =
      pass.tape.push("attention lse", DType::fp32, Shape{sequences, options_.heads, tokens});
  {
    const Cheap cheap(pass);
    const Tensor normed = pass.tape.push("norm", pass.dtype, x.shape);
    norm1_.forward(pass, saved.norm1, normed);
    qkv_.forward(pass, {.x = normed, .y = saved.qkv});
    saved.normed1 = cheap.kept(normed);
  }
  pass.kernels.attention(pass.stream, {.qkv = saved.qkv,
                                       .out = saved.attention,
                                       .lse = saved.lse,
                                       .heads = static_cast<int>(options_.heads),
                                       .causal = options_.causal});
  add_branch(pass, projection_, saved.attention, x, middle);
}

void TransformerBlock::mlp_forward(Pass& pass, const Tensor& middle, const Tensor& out,
                                   Saved& saved) {
  const Shape wide{middle.rows(), expand_.out()};
  saved.norm2 = norm2_.prepare(pass, middle);
  saved.expanded = pass.tape.push("mlp expanded", pass.dtype, wide);
  const Cheap cheap(pass);
  const Tensor normed = pass.tape.push("norm", pass.dtype, middle.shape);
  norm2_.forward(pass, saved.norm2, normed);
  saved.normed2 = cheap.kept(normed);
  if (!out) {  // a replay: backward computes the rest
    expand_.forward(pass, {.x = normed, .y = saved.expanded});
    return;
  }
  const Tensor activated = pass.tape.push("mlp activated", pass.dtype, wide);
  expand_.forward(pass,
                  {.x = normed, .y = saved.expanded, .activation = kGelu, .activated = activated});
  saved.activated = cheap.kept(activated);
  add_branch(pass, contract_, activated, middle, out);
}

void TransformerBlock::mlp_backward(Pass& pass, const Saved& saved, const Tensor& gradient,
                                    const Tensor& narrow) {
  const Tape::Scope temporaries(pass.tape);
  const Tensor dout = branch_gradient(pass, contract_, gradient, narrow);
  Tensor wide = saved.activated;
  if (!wide) {
    wide = pass.tape.push("mlp activated", pass.dtype, saved.expanded.shape);
    pass.kernels.activation(pass.stream, {.kind = kGelu, .x = saved.expanded, .y = wide});
  }
  contract_.backward_weight(pass, wide, dout, pass.accumulate);
  contract_.backward_input(
      pass, {.dy = dout, .dx = wide, .activation = kGelu, .preactivation = saved.expanded});
  Tensor normed = saved.normed2;
  if (!normed) {
    normed = narrow;
    norm2_.forward(pass, saved.norm2, normed);
  }
  expand_.backward_weight(pass, normed, wide, pass.accumulate);
  expand_.backward_input(pass, {.dy = wide, .dx = narrow});
  norm2_.backward(pass, saved.norm2, narrow, gradient, has_copy(pass) ? narrow : Tensor());
}

void TransformerBlock::attention_backward(Pass& pass, const Saved& saved, const Tensor& gradient,
                                          const Tensor& narrow) {
  const Tape::Scope temporaries(pass.tape);
  const Tensor dout = branch_gradient(pass, projection_, gradient, narrow);
  const Tensor dattention = pass.tape.push("attention gradient", pass.dtype, gradient.shape);
  projection_.backward_input(pass, {.dy = dout, .dx = dattention});
  projection_.backward_weight(pass, saved.attention, dout, pass.accumulate);
  const Tensor dqkv = pass.tape.push("qkv gradient", pass.dtype, saved.qkv.shape);
  pass.kernels.attention_backward(pass.stream, {.qkv = saved.qkv,
                                                .out = saved.attention,
                                                .lse = saved.lse,
                                                .dout = dattention,
                                                .dqkv = dqkv,
                                                .heads = static_cast<int>(options_.heads),
                                                .causal = options_.causal});
  Tensor normed = saved.normed1;
  if (!normed) {
    normed = narrow;
    norm1_.forward(pass, saved.norm1, normed);
  }
  qkv_.backward_weight(pass, normed, dqkv, pass.accumulate);
  qkv_.backward_input(pass, {.dy = dqkv, .dx = narrow});
  norm1_.backward(pass, saved.norm1, narrow, gradient);
}

}  // namespace espalier::model
