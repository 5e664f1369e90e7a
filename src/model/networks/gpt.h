#pragma once
// GPT-2's layers: embedding, pre-norm blocks, head. Letters: B sequences, T context, C width, H
// heads, V vocabulary, R = B T rows. Source: Radford et al. 2019; layout as in nanoGPT.
//
//   embedding   x = token[tokens] + position
//   block       x += projection(attention(qkv(norm1(x))));  x += contract(gelu(expand(norm2(x))))
//   head        losses = cross-entropy(norm(x) Wᵀ), by chunks of rows: full logits never exist
//
// The residual stream x is fp32, products run in the compute type. Dropout acts on the embedding
// and on both branches (not inside attention). Initial weights: normal 0.02; projections into the
// residual stream 0.02 / sqrt(2 layers).
//
// What a block keeps for backward, in bytes a row (e: bytes of the compute type, ratio 4):
//   none       8 C residual streams + 14 e C: norm outputs, qkv, attention, MLP before and after gelu
//   selective  8 C + 8 e C: norm outputs and gelu are computed again
//   full       4 C: its input; the rest is there for one block at a time
#include "src/model/layer.h"
#include "src/model/layers/components.h"

namespace espalier::model {

struct GptShape {
  int64_t layers = 4, heads = 4, width = 128, context = 64, vocabulary = 256, mlp_ratio = 4;
  bool tie_embeddings = false;

  /// Between its layers.
  Flow residual_stream(int64_t samples) const {
    return {.dtype = DType::fp32, .shape = Shape{samples, context, width}};
  }
};

class Embedding final : public Layer {
 public:
  explicit Embedding(const GptShape& shape) : shape_(shape) {}
  std::string_view name() const override { return "embedding"; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  Flow output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  GptShape shape_;
  sparse::Store* store_ = nullptr;
  sparse::Parameter* token_ = nullptr;
  sparse::Parameter* position_ = nullptr;
};

class Block final : public Layer {
 public:
  Block(const GptShape& shape, int64_t number);
  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  Flow output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  bool can_replay() const override { return true; }
  void replay(Pass& pass, const Tensor& x) override;

 private:
  struct Saved {
    LayerNorm::Saved norm1, norm2;
    Tensor qkv, attention, lse;  ///< [B, T, 3C], [B, T, C], [B, H, T]
    Tensor expanded;             ///< [R, ratio C] before GELU
    Tensor normed1, normed2;     ///< outputs of the norms; not with recompute
    Tensor activated;            ///< [R, ratio C] after GELU; not with recompute
  };
  /// All but the last product, which needs the output's memory.
  Saved run(Pass& pass, const Tensor& x, const Tensor& out);
  void attention_forward(Pass& pass, const Tensor& x, const Tensor& middle, Saved& saved);
  void mlp_forward(Pass& pass, const Tensor& middle, const Tensor& out, Saved& saved);
  /// Of a branch; both add to `gradient`. With has_copy `narrow` comes in as its copy in the compute
  /// type, and the first that backward comes to leaves the next one's there.
  void mlp_backward(Pass& pass, const Saved& saved, const Tensor& gradient, const Tensor& narrow);
  void attention_backward(Pass& pass, const Saved& saved, const Tensor& gradient,
                          const Tensor& narrow);
  /// out = x + dropout(linear(branch))
  void add_branch(Pass& pass, Linear& linear, const Tensor& branch, const Tensor& x,
                  const Tensor& out);
  /// Branches see another gradient than the residual stream's: rounded, or dropped out.
  static bool has_copy(const Pass& pass);
  /// The one that the branch's linear map sees, in `narrow` where it differs.
  static Tensor branch_gradient(Pass& pass, const Linear& linear, const Tensor& gradient,
                                const Tensor& narrow);

  std::string name_;
  GptShape shape_;
  LayerNorm norm1_, norm2_;
  Linear qkv_, projection_, expand_, contract_;
};

class Head final : public Layer {
 public:
  explicit Head(const GptShape& shape);
  std::string_view name() const override { return "head"; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  /// The token embedding, where it is tied.
  std::vector<sparse::ParameterSpec> borrowed() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  Tensor logits(Pass& pass, const Tensor& x) override;

 private:
  /// Losses of some rows; in training their gradient takes the place of the norm's output.
  void loss_chunk(Pass& pass, const Tensor& normed, int64_t first, int64_t rows);

  GptShape shape_;
  LayerNorm norm_;
  Linear linear_;
};

/// All layers of a GPT, in order.
std::vector<std::unique_ptr<Layer>> make_gpt(const GptShape& shape);

}  // namespace espalier::model
