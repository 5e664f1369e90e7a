#pragma once
// Layers between images. Images are [B, H W, C], in the compute type: matrices of pixels
// (src/kernels/operations/window.h). Before a layer that reads whole images (`flat`), the output
// has the same numbers as [B, H W C]. The first layer of a network (`first`) reads pass.inputs,
// fp32 [B, H W C].
#include <string>

#include "src/model/layers/convolution_unit.h"

namespace espalier::model {

/// Images of `channels` each: [samples, pixels, channels], or [samples, pixels channels] if `flat`.
Shape image_shape(int64_t samples, int64_t pixels, int64_t channels, bool flat);
/// The same numbers as a matrix of pixels.
Tensor pixels_of(const Tensor& images, int64_t channels);
/// pass.inputs in the compute type, as a matrix of pixels.
Tensor input_pixels(Pass& pass, int64_t channels);

/// y = f(norm(patches(x) Wᵀ)): ConvolutionUnit.
class ConvolutionLayer final : public Layer {
 public:
  struct Options {
    ConvolutionUnit::Options unit;
    bool first = false;
    bool flat = false;
  };
  ConvolutionLayer(std::string name, const Options& options);

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override { return unit_.parameters(); }
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  const Convolution& convolution() const { return unit_.convolution(); }

  std::string name_;
  ConvolutionUnit unit_;
  bool first_;  ///< the gradient of its input is not needed
  bool flat_;
};

/// y = relu(norm(x)).
class NormLayer final : public Layer {
 public:
  struct Options {
    int64_t pixels = 1, channels = 1;  ///< of an image
    bool first = false;
    bool flat = false;
  };
  NormLayer(std::string name, const Options& options)
      : name_(std::move(name)), options_(options), norm_(name_, options.channels) {}

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override { return norm_.parameters(); }
  void bind(sparse::Store& store, const kernels::Kernels& /*kernels*/) override {
    norm_.bind(store);
  }
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  struct Saved {
    BatchNorm::Saved norm;
    Tensor y;
  };
  std::string name_;
  Options options_;
  BatchNorm norm_;
};

/// y = x (k + alpha / extent (sum of x² of neighbouring channels))^(-3/4)
/// (src/kernels/operations/local_norm.h).
class LocalNormLayer final : public Layer {
 public:
  struct Options {
    kernels::LocalNorm norm;
    int64_t pixels = 1, channels = 1;  ///< of an image
    bool first = false;
    bool flat = false;
  };
  LocalNormLayer(std::string name, const Options& options)
      : name_(std::move(name)), options_(options) {}

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override { return {}; }
  void bind(sparse::Store& /*store*/, const kernels::Kernels& /*kernels*/) override {}
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  struct Saved {
    Tensor x;
  };
  std::string name_;
  Options options_;
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
