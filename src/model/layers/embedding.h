#pragma once
// The first layer of a network that reads tokens: fp32 x [B, T, C] =
// dropout(scale token[tokens] + position).
#include <string>
#include <vector>

#include "src/model/layer.h"

namespace espalier::model {

inline constexpr std::string_view kTokenEmbedding = "embedding.token";

class Embedding final : public Layer {
 public:
  struct Options {
    int64_t vocabulary = 1;  ///< V
    int64_t context = 1;     ///< T
    int64_t width = 1;       ///< C
    bool positions = true;   ///< learned ones, added
    float scale = 1;
    bool tied = false;  ///< the head uses token too
  };
  /// Parameters embedding.token [V, C] and, with positions, embedding.position [T, C]; initial
  /// deviation 0.02.
  explicit Embedding(const Options& options) : options_(options) {}

  std::string_view name() const override { return "embedding"; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  Options options_;
  sparse::Store* store_ = nullptr;
  sparse::Parameter* token_ = nullptr;
  sparse::Parameter* position_ = nullptr;  ///< null: none
};

}  // namespace espalier::model
