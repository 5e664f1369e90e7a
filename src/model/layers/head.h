#pragma once
// The last layer of a network that predicts tokens: losses = cross-entropy(norm(x) Wᵀ), by chunks
// of rows, so that full logits never exist. x fp32 [B, T, C]; W [V, C], which may be the embedding
// of tokens (tied).
#include <string>
#include <vector>

#include "src/model/layers/embedding.h"
#include "src/model/layers/linear.h"
#include "src/model/layers/norm.h"

namespace espalier::model {

class Head final : public Layer {
 public:
  struct Options {
    Embedding::Options embedding;  ///< of the network
    std::string norm;              ///< a name of norms()
    double norm_epsilon = 1e-5;
  };
  /// Parameters norm.weight, norm.bias; head.weight [V, C], unless tied.
  explicit Head(const Options& options);

  std::string_view name() const override { return "head"; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  /// The token embedding, where it is tied.
  std::vector<sparse::ParameterSpec> borrowed() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  /// Computes the gradient of x too, so that only that stays on the tape while the blocks run.
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  Tensor logits(Pass& pass, const Tensor& x) override;

 private:
  /// Losses of some rows; in training their gradient takes the place of the norm's output. The
  /// weight's gradient goes to `sum`, fp32, or, if that is empty, to the store.
  void loss_chunk(Pass& pass, const Tensor& normed, int64_t first, int64_t rows, const Tensor& sum);

  Options options_;
  Norm norm_;
  Linear linear_;
};

}  // namespace espalier::model
