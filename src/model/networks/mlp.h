#pragma once
// A multilayer perceptron for classification: hidden layers y = relu(x Wᵀ + b), then a classifier.
// The second network on the layer interface; between its layers flow activations in the compute
// type. Its layers keep their outputs alone, so there is nothing to compute again in backward.
#include "src/model/layer.h"
#include "src/model/layers/components.h"

namespace espalier::model {

struct MlpShape {
  int64_t features = 784;
  std::vector<int64_t> hidden{256, 256};
  int64_t classes = 10;
};

class Hidden final : public Layer {
 public:
  Hidden(std::string name, int64_t in, int64_t out, bool first);
  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override { return linear_.parameters(); }
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override;
  Flow output(int64_t samples, DType dtype) const override {
    return {.dtype = dtype, .shape = Shape{samples, linear_.out()}};
  }
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;

 private:
  struct Saved {
    Tensor x, y;  ///< [B, in], [B, out]
  };
  std::string name_;
  Linear linear_;
  bool first_;  ///< reads pass.inputs, and nobody wants the gradient of its input
};

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

/// All layers of an MLP, in order.
std::vector<std::unique_ptr<Layer>> make_mlp(const MlpShape& shape);

}  // namespace espalier::model
