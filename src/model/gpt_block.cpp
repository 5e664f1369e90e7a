#include <cmath>
#include <optional>

#include "src/model/dropout.h"
#include "src/model/gpt.h"

namespace espalier::model {
namespace {

Linear::Options into_residual(const GptShape& shape) {
  return {.deviation = 0.02F / std::sqrt(2.0F * static_cast<float>(shape.layers))};
}

}  // namespace

Block::Block(const GptShape& shape, int64_t number)
    : name_(fmt::format("blocks.{}", number)),
      shape_(shape),
      norm1_(name_ + ".norm1", shape.width),
      norm2_(name_ + ".norm2", shape.width),
      qkv_(name_ + ".attention.qkv", shape.width, 3 * shape.width, {}),
      projection_(name_ + ".attention.projection", shape.width, shape.width, into_residual(shape)),
      expand_(name_ + ".mlp.expand", shape.width, shape.mlp_ratio * shape.width, {}),
      contract_(name_ + ".mlp.contract", shape.mlp_ratio * shape.width, shape.width,
                into_residual(shape)) {}

std::vector<sparse::ParameterSpec> Block::parameters() const {
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

void Block::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  norm1_.bind(store);
  norm2_.bind(store);
  for (Linear* linear : {&qkv_, &projection_, &expand_, &contract_}) {
    linear->bind(store, kernels);
  }
}

Tensor Block::forward(Pass& pass, const Tensor& x) {
  const Tensor out = pass.tape.push("residual stream", DType::fp32, x.shape);
  std::optional<Tape::Scope> temporaries;
  if (!pass.training) {
    temporaries.emplace(pass.tape);
  }
  const Tensor middle = pass.tape.push("residual stream", DType::fp32, x.shape);
  Saved saved;
  attention_forward(pass, x, middle, saved);
  mlp_forward(pass, middle, out, saved);
  if (pass.training) {
    pass.tape.save(this, saved);
  }
  return out;
}

void Block::attention_forward(Pass& pass, const Tensor& x, const Tensor& middle, Saved& saved) {
  const int64_t sequences = x.shape[0];
  const int64_t tokens = x.shape[1];
  saved.norm1 = norm1_.forward(pass, x);
  saved.qkv = pass.tape.push("attention qkv", pass.dtype, Shape{sequences, tokens, qkv_.out()});
  qkv_.forward(pass, saved.norm1.y, saved.qkv);
  saved.attention = pass.tape.push("attention out", pass.dtype, x.shape);
  saved.lse = pass.tape.push("attention lse", DType::fp32, Shape{sequences, shape_.heads, tokens});
  pass.kernels.attention(pass.stream, {.qkv = saved.qkv,
                                       .out = saved.attention,
                                       .lse = saved.lse,
                                       .heads = static_cast<int>(shape_.heads)});
  add_branch(pass, projection_, saved.attention, x, middle);
}

void Block::mlp_forward(Pass& pass, const Tensor& middle, const Tensor& out, Saved& saved) {
  saved.norm2 = norm2_.forward(pass, middle);
  const Shape wide{middle.rows(), expand_.out()};
  saved.expanded = pass.tape.push("mlp expanded", pass.dtype, wide);
  saved.activated = pass.tape.push("mlp activated", pass.dtype, wide);
  expand_.forward(pass, saved.norm2.y, saved.expanded, kernels::Activation::gelu, saved.activated);
  add_branch(pass, contract_, saved.activated, middle, out);
}

void Block::add_branch(Pass& pass, Linear& linear, const Tensor& branch, const Tensor& x,
                       const Tensor& out) {
  if (drops(pass)) {
    linear.forward(pass, branch, out);
    apply_dropout(pass, linear.name(), out, out);
    pass.kernels.cast(pass.stream, {.x = x, .y = out, .accumulate = true});
  } else {
    pass.kernels.cast(pass.stream, {.x = x, .y = out});
    linear.forward(pass, branch, out, true);  // the product adds to the copied stream
  }
}

Tensor Block::backward(Pass& pass, const Tensor& dy) {
  const auto& saved = pass.tape.saved<Saved>(this);
  mlp_backward(pass, saved, dy);
  attention_backward(pass, saved, dy);
  return dy;
}

Tensor Block::branch_gradient(Pass& pass, const Linear& linear, const Tensor& gradient) {
  if (pass.dtype == DType::fp32 && !drops(pass)) {
    return gradient;
  }
  const Tensor branch = pass.tape.push("branch gradient", pass.dtype, gradient.shape);
  pass.kernels.cast(pass.stream, {.x = gradient, .y = branch});
  apply_dropout(pass, linear.name(), branch, branch);
  return branch;
}

void Block::mlp_backward(Pass& pass, const Saved& saved, const Tensor& gradient) {
  const Tape::Scope temporaries(pass.tape);
  const Tensor dout = branch_gradient(pass, contract_, gradient);
  const Tensor dwide = pass.tape.push("mlp gradient", pass.dtype, saved.expanded.shape);
  contract_.backward_input(pass, dout, dwide, kernels::Activation::gelu, saved.expanded);
  contract_.backward_weight(pass, saved.activated, dout, pass.accumulate);
  const Tensor dnorm = pass.tape.push("norm gradient", pass.dtype, gradient.shape);
  expand_.backward_input(pass, dwide, dnorm);
  expand_.backward_weight(pass, saved.norm2.y, dwide, pass.accumulate);
  norm2_.backward(pass, saved.norm2, dnorm, gradient);
}

void Block::attention_backward(Pass& pass, const Saved& saved, const Tensor& gradient) {
  const Tape::Scope temporaries(pass.tape);
  const Tensor dout = branch_gradient(pass, projection_, gradient);
  const Tensor dattention = pass.tape.push("attention gradient", pass.dtype, gradient.shape);
  projection_.backward_input(pass, dout, dattention);
  projection_.backward_weight(pass, saved.attention, dout, pass.accumulate);
  const Tensor dqkv = pass.tape.push("qkv gradient", pass.dtype, saved.qkv.shape);
  pass.kernels.attention_backward(pass.stream, {.qkv = saved.qkv,
                                                .out = saved.attention,
                                                .lse = saved.lse,
                                                .dout = dattention,
                                                .dqkv = dqkv,
                                                .heads = static_cast<int>(shape_.heads)});
  qkv_.backward_input(pass, dqkv, dattention);  // the old gradient is used up
  qkv_.backward_weight(pass, saved.norm1.y, dqkv, pass.accumulate);
  norm1_.backward(pass, saved.norm1, dattention, gradient);
}

}  // namespace espalier::model
