#pragma once
// Pre-norm transformer block. Letters: B sequences, T tokens, C width, H heads, R = B T rows.
//
//   x += projection(attention(qkv(norm1(x))));  x += contract(gelu(expand(norm2(x))))
//
// The residual stream x is fp32 [B, T, C]; products run in the compute type. Dropout acts on both
// branches (not inside attention). Initial weights: normal 0.02; projections into the residual
// stream 0.02 / sqrt(2 blocks). Source: Radford et al. 2019; layout as in nanoGPT.
//
// A block keeps for backward, in bytes a row (e: bytes of the compute type, ratio 4):
//   none       8 C residual streams + 14 e C: norm outputs, qkv, attention, MLP around gelu
//   selective  8 C + 8 e C: norm outputs and gelu are computed again
//   full       4 C: its input; the rest is there for one block at a time
#include <string>
#include <vector>

#include "src/model/layers/linear.h"
#include "src/model/layers/norm.h"

namespace espalier::model {

class TransformerBlock final : public Layer {
 public:
  struct Options {
    int64_t tokens = 1;     ///< T
    int64_t width = 1;      ///< C
    int64_t heads = 1;      ///< divides C
    int64_t mlp_ratio = 4;  ///< hidden width of the MLP / C
    int64_t blocks = 1;     ///< of the network, for initial weights
    std::string norm;       ///< a name of norms()
    bool causal = true;     ///< false: each token attends to all
  };
  /// Parameters NAME.norm1.weight, NAME.attention.qkv.weight, NAME.attention.projection.weight,
  /// NAME.norm2.weight, NAME.mlp.expand.weight, NAME.mlp.contract.weight, and biases.
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
    Tensor qkv, attention, lse;  ///< [B, T, 3C], [B, T, C], [B, H, T]
    Tensor expanded;             ///< [R, ratio C] before GELU
    Tensor normed1, normed2;     ///< outputs of the norms; not with recompute
    Tensor activated;            ///< [R, ratio C] after GELU; not with recompute
  };
  /// All but the last product, which needs the output's memory.
  Saved run(Pass& pass, const Tensor& x, const Tensor& out);
  void attention_forward(Pass& pass, const Tensor& x, const Tensor& middle, Saved& saved);
  void mlp_forward(Pass& pass, const Tensor& middle, const Tensor& out, Saved& saved);
  /// Backward of a branch; both add to `gradient`. If gradients of branches differ from the
  /// stream's (rounded, or dropped out), `narrow` holds a copy of `gradient` in the compute type,
  /// and mlp_backward, which runs first, updates it for attention_backward.
  void mlp_backward(Pass& pass, const Saved& saved, const Tensor& gradient, const Tensor& narrow);
  void attention_backward(Pass& pass, const Saved& saved, const Tensor& gradient,
                          const Tensor& narrow);

  std::string name_;
  Options options_;
  Norm norm1_, norm2_;
  Linear qkv_, projection_, expand_, contract_;
};

}  // namespace espalier::model
