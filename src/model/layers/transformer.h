#pragma once
// Pre-norm transformer block. Letters: B sequences, T tokens, C width, R = B T rows; H heads of
// width D, K heads of keys and values (attention.h); F hidden width of the MLP (feed_forward.h).
//
//   serial     x += attention(norm1(x));  x += mlp(norm2(x))
//   parallel   x += attention(norm1(x)) + mlp(norm2(x))        (GPT-J, GPT-NeoX)
//   post-norm  x += post_norm1(attention(norm1(x)));  x += post_norm2(mlp(norm2(x)))    (Gemma 3)
//
// The residual stream x is fp32 [B, T, C]; products run in the compute type. Dropout acts on both
// branches (not inside attention). Initial weights: normal 0.02; projections into the residual
// stream 0.02 / sqrt(2 blocks). Source: Radford et al. 2019; layout as in nanoGPT.
//
// A block keeps for backward, in bytes a row (e: bytes of the compute type; serial, H D = C, K = H,
// F = 4 C, not gated):
//   none       8 C residual streams + 14 e C: norm outputs, qkv, attention, MLP around gelu
//   selective  8 C + 8 e C: norm outputs and gelu are computed again
//   full       4 C: its input; the rest is there for one block at a time
// A gated MLP adds e F; post-norms add 8 C (not in full). A parallel block keeps 4 C instead of
// 8 C.
#include <string>
#include <vector>

#include "src/model/layers/attention.h"
#include "src/model/layers/feed_forward.h"
#include "src/model/layers/norm.h"

namespace espalier::model {

class TransformerBlock final : public Layer {
 public:
  struct Options {
    std::string norm;  ///< a name of norms()
    double norm_epsilon = 1e-5;
    bool parallel = false;
    bool post_norm = false;  ///< of serial blocks
    Attention::Options attention;
    FeedForward::Options mlp;
  };
  /// Parameters NAME.norm1.weight, those of NAME.attention, NAME.norm2.weight, those of NAME.mlp;
  /// with post_norm NAME.post_norm1.weight after those of NAME.attention, and last
  /// NAME.post_norm2.weight.
  TransformerBlock(std::string name, const Options& options);

  std::string_view name() const override { return name_; }
  int64_t variant() const override { return options_.attention.window; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  bool can_replay() const override { return true; }
  void replay(Pass& pass, const Tensor& x) override;

 private:
  struct Saved {
    Norm::Saved norm1, norm2, post_norm1, post_norm2;
    Attention::Saved attention;
    FeedForward::Saved mlp;
    Tensor normed1, normed2;  ///< outputs of the norms; not with recompute
    Tensor activated;         ///< [R, F], the input of mlp.contract; not with recompute
  };
  /// Gradients in backward.
  struct Gradients {
    Tensor stream;  ///< of the residual stream: branches add to it
    Tensor branch;  ///< [R, C], compute type: serial, a copy of `stream` where branches read one
    Tensor output;  ///< parallel: the block's output gradient in the compute type; else empty
  };
  /// All but the last product, which needs the output's memory.
  Saved run(Pass& pass, const Tensor& x, const Tensor& out);
  /// middle = x + attention; empty: not computed.
  void attention_forward(Pass& pass, const Tensor& x, const Tensor& middle, Saved& saved);
  /// out = middle + mlp, or, parallel, out += mlp(middle); empty: not computed.
  void mlp_forward(Pass& pass, const Tensor& middle, const Tensor& out, Saved& saved);
  /// out = x + post_norm(linear(branch)), with dropout; empty: only what backward needs.
  void add_normed(Pass& pass, Linear& linear, const Norm& post_norm, const Norm::Saved& saved,
                  const Tensor& branch, const Tensor& x, const Tensor& out) const;
  Tensor branch_gradient(Pass& pass, const Linear& linear, const Gradients& gradients,
                         const Norm& post_norm, const Norm::Saved& saved) const;
  Norm::Saved prepare_post_norm(Pass& pass, const Norm& post_norm, const Tensor& x) const;
  /// Backward of a branch; both add to gradients.stream. mlp_backward, which runs first, updates a
  /// serial block's gradients.branch for attention_backward.
  void mlp_backward(Pass& pass, const Saved& saved, const Gradients& gradients);
  void attention_backward(Pass& pass, const Saved& saved, const Gradients& gradients);

  std::string name_;
  Options options_;
  Norm norm1_, norm2_, post_norm1_, post_norm2_;
  Attention attention_;
  FeedForward mlp_;
};

}  // namespace espalier::model
