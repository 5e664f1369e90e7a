#pragma once
// Layers between images: a convolution with a rectifier, and pooling. Images are [B, H W, C], in
// the compute type: matrices of pixels (src/kernels/operations/window.h). Before a layer that reads
// whole images (`flat`), the output has the same numbers as [B, H W C]. The first layer of a
// network (`first`) reads pass.inputs, fp32 [B, H W C].
#include <string>

#include "src/model/layers/convolution.h"

namespace espalier::model {

/// y = relu(patches(x) Wᵀ + b).
class RectifiedConvolution final : public Layer {
 public:
  struct Options {
    Convolution::Options convolution;
    bool first = false;
    bool flat = false;
  };
  RectifiedConvolution(std::string name, const Options& options);

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override {
    return convolution_.parameters();
  }
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  struct Saved {
    Tensor x, y;
  };
  std::string name_;
  Convolution convolution_;
  bool first_;  ///< the gradient of its input is not needed
  bool flat_;
};

/// Pooling of each channel.
class Pooling final : public Layer {
 public:
  struct Options {
    kernels::Window window;
    kernels::Pool kind = kernels::Pool::max;
    int64_t channels = 1;
    bool first = false;
    bool flat = false;
  };
  Pooling(std::string name, const Options& options);

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override { return {}; }
  void bind(sparse::Store& /*store*/, const kernels::Kernels& /*kernels*/) override {}
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  struct Saved {
    Tensor x, from;  ///< `from`: of the maxima
  };
  std::string name_;
  Options options_;
};

}  // namespace espalier::model
