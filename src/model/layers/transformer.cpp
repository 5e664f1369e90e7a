#include "src/model/layers/transformer.h"

#include <optional>

#include "src/model/layers/dropout.h"

namespace espalier::model {
namespace {

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

/// out += dropout(linear(branch))
void add_second_branch(Pass& pass, Linear& linear, const Tensor& branch, const Tensor& out) {
  const Tape::Scope temporaries(pass.tape);
  const Tensor sum = pass.tape.push("residual branch", DType::fp32, out.shape);
  linear.forward(pass, {.x = branch, .y = sum});
  apply_dropout(pass, linear.name(), sum, sum);
  pass.kernels.cast(pass.stream, {.x = sum, .y = out, .accumulate = true});
}

/// Whether the gradient of a branch differs from the residual stream's: rounded, or dropped out.
bool has_copy(const Pass& pass) { return pass.dtype != DType::fp32 || drops(pass); }

}  // namespace

TransformerBlock::TransformerBlock(std::string name, const Options& options)
    : name_(std::move(name)),
      options_(options),
      norm1_(options.norm, name_ + ".norm1", options.attention.width, sparse::Scaling::base,
             options.norm_epsilon),
      norm2_(options.norm, name_ + ".norm2", options.attention.width, sparse::Scaling::base,
             options.norm_epsilon),
      post_norm1_(options.norm, name_ + ".post_norm1", options.attention.width,
                  sparse::Scaling::base, options.norm_epsilon),
      post_norm2_(options.norm, name_ + ".post_norm2", options.attention.width,
                  sparse::Scaling::base, options.norm_epsilon),
      attention_(name_ + ".attention", options.attention),
      mlp_(name_ + ".mlp", options.mlp) {
  require(!options.parallel || !options.post_norm, "norms of branches are for serial blocks");
}

std::vector<sparse::ParameterSpec> TransformerBlock::parameters() const {
  std::vector<sparse::ParameterSpec> all;
  auto add = [&all](std::vector<sparse::ParameterSpec> some) {
    all.insert(all.end(), some.begin(), some.end());
  };
  add(norm1_.parameters());
  add(attention_.parameters());
  add(options_.post_norm ? post_norm1_.parameters() : std::vector<sparse::ParameterSpec>());
  add(norm2_.parameters());
  add(mlp_.parameters());
  add(options_.post_norm ? post_norm2_.parameters() : std::vector<sparse::ParameterSpec>());
  return all;
}

void TransformerBlock::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  norm1_.bind(store);
  norm2_.bind(store);
  attention_.bind(store, kernels);
  mlp_.bind(store, kernels);
  if (options_.post_norm) {
    post_norm1_.bind(store);
    post_norm2_.bind(store);
  }
}

TensorSpec TransformerBlock::output(int64_t samples, DType /*dtype*/) const {
  const Attention::Options& attention = options_.attention;
  return {.dtype = DType::fp32, .shape = Shape{samples, attention.tokens, attention.width}};
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
  Gradients gradients{.stream = dy,
                      .branch = pass.tape.push("branch gradient", pass.dtype, dy.shape),
                      .output = {}};
  if (options_.parallel) {
    gradients.output = pass.tape.push("branch gradient", pass.dtype, dy.shape);
    pass.kernels.cast(pass.stream, {.x = dy, .y = gradients.output});
  } else if (has_copy(pass)) {
    pass.kernels.cast(pass.stream, {.x = dy, .y = gradients.branch});
  }
  mlp_backward(pass, saved, gradients);
  attention_backward(pass, saved, gradients);
  return dy;
}

void TransformerBlock::replay(Pass& pass, const Tensor& x) {
  pass.tape.save(this, run(pass, x, {}));
}

TransformerBlock::Saved TransformerBlock::run(Pass& pass, const Tensor& x, const Tensor& out) {
  Saved saved;
  if (options_.parallel) {
    attention_forward(pass, x, out, saved);
    mlp_forward(pass, x, out, saved);
  } else {
    const Tensor middle = pass.tape.push("residual stream", DType::fp32, x.shape);
    attention_forward(pass, x, middle, saved);
    mlp_forward(pass, middle, out, saved);
  }
  return saved;
}

void TransformerBlock::attention_forward(Pass& pass, const Tensor& x, const Tensor& middle,
                                         Saved& saved) {
  saved.norm1 = norm1_.prepare(pass, x);
  saved.attention = attention_.prepare(pass, x.shape[0], x.shape[1]);
  saved.post_norm1 = prepare_post_norm(pass, post_norm1_, x);
  {
    const Cheap cheap(pass);
    const Tensor normed = pass.tape.push("norm", pass.dtype, x.shape);
    norm1_.forward(pass, saved.norm1, normed);
    attention_.project(pass, normed, saved.attention);
    saved.normed1 = cheap.kept(normed);
  }
  attention_.attend(pass, saved.attention);
  if (options_.post_norm) {
    add_normed(pass, attention_.projection(), post_norm1_, saved.post_norm1, saved.attention.out, x,
               middle);
  } else if (middle) {
    add_branch(pass, attention_.projection(), saved.attention.out, x, middle);
  }
}

Norm::Saved TransformerBlock::prepare_post_norm(Pass& pass, const Norm& post_norm,
                                                const Tensor& x) const {
  return options_.post_norm
             ? post_norm.prepare(pass, pass.tape.push("branch before norm", DType::fp32, x.shape))
             : Norm::Saved();
}

void TransformerBlock::add_normed(Pass& pass, Linear& linear, const Norm& post_norm,
                                  const Norm::Saved& saved, const Tensor& branch, const Tensor& x,
                                  const Tensor& out) const {
  const Tape::Scope temporaries(pass.tape);
  linear.forward(pass, {.x = branch, .y = saved.x});
  const Tensor normed = pass.tape.push("norm", pass.dtype, x.shape);
  post_norm.forward(pass, saved, normed);
  if (out) {
    apply_dropout(pass, linear.name(), normed, normed);
    pass.kernels.cast(pass.stream, {.x = x, .y = out});
    pass.kernels.cast(pass.stream, {.x = normed, .y = out, .accumulate = true});
  }
}

void TransformerBlock::mlp_forward(Pass& pass, const Tensor& middle, const Tensor& out,
                                   Saved& saved) {
  saved.norm2 = norm2_.prepare(pass, middle);
  saved.mlp = mlp_.prepare(pass, middle.rows());
  saved.post_norm2 = prepare_post_norm(pass, post_norm2_, middle);
  const Cheap cheap(pass);
  const Tensor normed = pass.tape.push("norm", pass.dtype, middle.shape);
  norm2_.forward(pass, saved.norm2, normed);
  saved.normed2 = cheap.kept(normed);
  if (!out && !options_.post_norm) {  // a replay: backward computes the rest
    mlp_.expand(pass, normed, saved.mlp, {});
    return;
  }
  const Tensor activated = mlp_.push_activated(pass, middle.rows());
  mlp_.expand(pass, normed, saved.mlp, activated);
  saved.activated = cheap.kept(activated);
  if (options_.post_norm) {
    add_normed(pass, mlp_.contract(), post_norm2_, saved.post_norm2, activated, middle, out);
  } else if (options_.parallel) {
    add_second_branch(pass, mlp_.contract(), activated, out);
  } else {
    add_branch(pass, mlp_.contract(), activated, middle, out);
  }
}

/// Gradient of the output of the branch's linear map, in gradients.branch where it is dropped out.
Tensor TransformerBlock::branch_gradient(Pass& pass, const Linear& linear,
                                         const Gradients& gradients, const Norm& post_norm,
                                         const Norm::Saved& saved) const {
  const Tensor& branch = gradients.branch;
  if (options_.parallel) {
    apply_dropout(pass, linear.name(), gradients.output, branch);
    return drops(pass) ? branch : gradients.output;
  }
  apply_dropout(pass, linear.name(), branch, branch);
  const Tensor dbranch = has_copy(pass) ? branch : gradients.stream;
  if (!options_.post_norm) {
    return dbranch;
  }
  const Tensor dx = pass.tape.push("branch gradient", DType::fp32, dbranch.shape);
  const bool rounds = pass.dtype != DType::fp32;
  const Tensor rounded =
      rounds ? pass.tape.push("branch gradient", pass.dtype, dbranch.shape) : Tensor();
  pass.kernels.fill(pass.stream, {.x = dx});
  post_norm.backward(pass, saved, dbranch, dx, rounded);
  return rounds ? rounded : dx;
}

void TransformerBlock::mlp_backward(Pass& pass, const Saved& saved, const Gradients& gradients) {
  const Tape::Scope temporaries(pass.tape);
  const Tensor dout =
      branch_gradient(pass, mlp_.contract(), gradients, post_norm2_, saved.post_norm2);
  Tensor activated = saved.activated;
  if (!activated) {
    activated = mlp_.push_activated(pass, dout.rows());
    mlp_.activate(pass, saved.mlp, activated);
  }
  mlp_.backward_contract(pass, saved.mlp, activated, dout);
  const Tensor& branch = gradients.branch;
  Tensor normed = saved.normed2;
  if (!normed) {
    normed = branch;
    norm2_.forward(pass, saved.norm2, normed);
  }
  mlp_.backward_expand(pass, saved.mlp, normed, activated, branch);
  norm2_.backward(pass, saved.norm2, branch, gradients.stream,
                  !options_.parallel && has_copy(pass) ? branch : Tensor());
}

void TransformerBlock::attention_backward(Pass& pass, const Saved& saved,
                                          const Gradients& gradients) {
  const Tape::Scope temporaries(pass.tape);
  const Tensor dout =
      branch_gradient(pass, attention_.projection(), gradients, post_norm1_, saved.post_norm1);
  const Tensor dqkv = attention_.backward_attend(pass, saved.attention, dout);
  const Tensor& branch = gradients.branch;
  Tensor normed = saved.normed1;
  if (!normed) {
    normed = branch;
    norm1_.forward(pass, saved.norm1, normed);
  }
  attention_.backward_project(pass, saved.attention, normed, dqkv, branch);
  norm1_.backward(pass, saved.norm1, branch, gradients.stream);
}

}  // namespace espalier::model
