#pragma once
// A convolution with what usually follows it: batch norm, a sum with a shortcut, a rectifier. It
// keeps no activations: callers pass what backward needs.
//
//   y = f(norm(patches(x) Wᵀ) + addend)     without norm: f(patches(x) Wᵀ + b + addend)
#include <optional>
#include <string>
#include <vector>

#include "src/model/layers/batch_norm.h"
#include "src/model/layers/convolution.h"

namespace espalier::model {

class ConvolutionUnit {
 public:
  struct Options {
    Convolution::Options convolution;
    bool norm = false;  ///< then the convolution has no bias
    bool rectify = true;
  };
  /// Parameters NAME.weight, NAME.bias or NAME.norm.weight, ….
  ConvolutionUnit(const std::string& name, const Options& options);

  std::vector<sparse::ParameterSpec> parameters() const;
  void bind(sparse::Store& store, const kernels::Kernels& kernels);
  const Convolution& convolution() const { return convolution_; }

  struct Saved {
    Tensor x, y;
    BatchNorm::Saved norm{};
  };
  /// Writes y, a matrix of pixels in the compute type. `addend`: like y, or empty.
  Saved forward(Pass& pass, const Tensor& x, const Tensor& addend, const Tensor& y);
  /// dy becomes the gradient at the addend. Overwrites dx, unless it is empty.
  void backward(Pass& pass, const Saved& saved, const Tensor& dy, const Tensor& dx);

 private:
  Convolution convolution_;
  std::optional<BatchNorm> norm_;
  bool rectify_;
};

}  // namespace espalier::model
