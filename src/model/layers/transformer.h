#pragma once
// Pre-norm transformer block. Letters: B sequences, T tokens, C width, R = B T rows; H heads of
// width D, K heads of keys and values (attention.h); F hidden width of the MLP (feed_forward.h).
//
//   serial     x += attention(norm1(x));  x += mlp(norm2(x))
//   parallel   x += attention(norm1(x)) + mlp(norm2(x))        (GPT-J, GPT-NeoX)
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
// A gated MLP adds e F. A parallel block keeps 4 C instead of 8 C.
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
    Attention::Options attention;
    FeedForward::Options mlp;
  };
  /// Parameters NAME.norm1.weight, those of NAME.attention, NAME.norm2.weight, those of NAME.mlp.
  TransformerBlock(std::string name, const Options& options);

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  bool can_replay() const override { return true; }
  void replay(Pass& pass, const Tensor& x) override;

 private:
  struct Saved {
    Norm::Saved norm1, norm2;
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
  Tensor branch_gradient(Pass& pass, const Linear& linear, const Gradients& gradients) const;
  /// Backward of a branch; both add to gradients.stream. mlp_backward, which runs first, updates a
  /// serial block's gradients.branch for attention_backward.
  void mlp_backward(Pass& pass, const Saved& saved, const Gradients& gradients);
  void attention_backward(Pass& pass, const Saved& saved, const Gradients& gradients);

  std::string name_;
  Options options_;
  Norm norm1_, norm2_;
  Attention attention_;
  FeedForward mlp_;
};

}  // namespace espalier::model
