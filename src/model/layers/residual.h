#pragma once
// Residual blocks between images (layers/images.h): one layer each, so no pipeline cuts them.
#include <optional>
#include <string>
#include <vector>

#include "src/model/layers/images.h"

namespace espalier::model {

/// y = relu(branch(x) + shortcut(x)). The branch is a chain of units with norms; the
/// shortcut is x itself, or a unit of extent 1 where the shape changes (He et al.,
/// CVPR 2016: basic and bottleneck blocks, option B).
class ResidualBlock final : public Layer {
 public:
  struct Options {
    std::vector<Convolution::Options> branch;
    std::optional<Convolution::Options> projection;
    bool flat = false;
  };
  /// Parameters NAME.1.weight, NAME.1.norm.weight, …, NAME.shortcut.weight, ….
  ResidualBlock(std::string name, const Options& options);

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  struct Saved {
    std::vector<ConvolutionUnit::Saved> branch;
    ConvolutionUnit::Saved projection{};
  };
  std::string name_;
  std::vector<ConvolutionUnit> branch_;
  std::optional<ConvolutionUnit> projection_;
  bool flat_;
};

/// y = conv2(f2(conv1(f1(x)))) + shortcut, f = relu(norm(·)), after f2 dropout. The shortcut is x,
/// or a convolution of f1(x) where the shape changes (Zagoruyko and Komodakis, BMVC 2016).
class WideBlock final : public Layer {
 public:
  struct Options {
    Convolution::Options first, second;
    std::optional<Convolution::Options> projection;
    bool flat = false;
  };
  /// Parameters NAME.norm1.weight, NAME.conv1.weight, …, NAME.shortcut.weight.
  WideBlock(std::string name, const Options& options);

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override;
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  struct Saved {
    BatchNorm::Saved norm1, norm2;
    Tensor y1, y2;  ///< f1(x); f2(conv1(y1)) after dropout
  };
  std::string name_;
  BatchNorm norm1_, norm2_;
  Convolution conv1_, conv2_;
  std::optional<Convolution> projection_;
  bool flat_;
};

}  // namespace espalier::model
