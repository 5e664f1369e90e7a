#pragma once
// The layers of a perceptron: hidden layers y = relu(x Wᵀ + b) and a classifier. Activations
// between layers are in the compute type. A layer keeps its output alone, so backward has nothing
// to compute again.
#include <string>

#include "src/model/layers/linear.h"

namespace espalier::model {

/// He et al. 2015: keeps the variance through rectified layers with `in` inputs.
float he_deviation(int64_t in);

/// The first layer of a network reads pass.inputs in the compute type, `first`.
class Hidden final : public Layer {
 public:
  Hidden(std::string name, int64_t in, int64_t out, bool first);

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override { return linear_.parameters(); }
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  TensorSpec output(int64_t samples, DType dtype) const override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  struct Saved {
    Tensor x, y;  ///< [B, in], [B, out]
  };
  std::string name_;
  Linear linear_;
  bool first_;  ///< the gradient of its input is not needed
};

/// The last layer: logits, losses and their gradients.
class Classifier final : public Layer {
 public:
  Classifier(int64_t in, int64_t classes);

  std::string_view name() const override { return "classifier"; }
  std::vector<sparse::ParameterSpec> parameters() const override { return linear_.parameters(); }
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  Tensor logits(Pass& pass, const Tensor& x) override;

 private:
  struct Saved {
    Tensor x, dlogits;  ///< [B, in], [B, classes]
  };
  Linear linear_;
};

}  // namespace espalier::model
