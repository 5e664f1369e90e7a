#pragma once
// The ends of a vision transformer (Dosovitskiy et al., ICLR 2021), between images
// (layers/images.h) and the residual stream of its blocks (layers/transformer.h), fp32 [B, T, C]:
// T tokens, one for each patch of an image, in the order of rows of patches.
#include <string>
#include <vector>

#include "src/model/layers/convolution.h"
#include "src/model/layers/norm.h"

namespace espalier::model {

/// y[b, t] = patches(x)[b, t] Wᵀ + bias + position[t], then dropout. The patches do not overlap.
class PatchEmbedding final : public Layer {
 public:
  struct Options {
    Convolution::Options convolution;  ///< its stride is its extent
    bool first = false;                ///< it reads pass.inputs
  };
  /// Parameters NAME.weight [C, extent² channels], NAME.bias [C], NAME.position [T, C].
  PatchEmbedding(std::string name, const Options& options);

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  int64_t tokens() const { return convolution_.window().out_pixels(); }
  int64_t width() const { return convolution_.out(); }

  std::string name_;
  Convolution convolution_;
  bool first_;
  sparse::Store* store_ = nullptr;
  sparse::Parameter* position_ = nullptr;
};

/// y[b] = mean over t of norm(x)[b, t], in the compute type: images of one pixel. It takes the
/// place of a class token (Beyer et al. 2022, "Better plain ViT baselines for ImageNet-1k").
class TokenMean final : public Layer {
 public:
  struct Options {
    int64_t edge = 1;   ///< T = edge²
    int64_t width = 1;  ///< C
    std::string norm;   ///< a name of norms()
    bool flat = false;  ///< as in layers/images.h
  };
  /// Parameters NAME.norm.weight and so on.
  TokenMean(std::string name, const Options& options);

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override { return norm_.parameters(); }
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  kernels::Window window() const {
    return {.height = options_.edge,
            .width = options_.edge,
            .extent = options_.edge,
            .stride = options_.edge};
  }

  std::string name_;
  Options options_;
  Norm norm_;
};

}  // namespace espalier::model
