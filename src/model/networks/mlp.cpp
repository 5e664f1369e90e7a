// A multilayer perceptron for classification: hidden layers y = relu(x Wᵀ + b), then a classifier.
// Activations between layers are in the compute type. A layer keeps its output alone, so backward
// has nothing to compute again.
#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "src/model/layers/dropout.h"
#include "src/model/layers/linear.h"
#include "src/model/networks/registry.h"

namespace espalier::model {
namespace {

/// He et al. 2015: keeps the variance through rectified layers.
float he_deviation(int64_t in) { return std::sqrt(2.0F / static_cast<float>(in)); }

class Hidden final : public Layer {
 public:
  Hidden(std::string name, int64_t in, int64_t out, bool first)
      : name_(std::move(name)),
        linear_(name_, in, out,
                {.deviation = he_deviation(in),
                 .scaling = first ? sparse::Scaling::base : sparse::Scaling::hidden,
                 .width = first ? out : in,
                 .deviation_by_width = !first}),
        first_(first) {}

  std::string_view name() const override { return name_; }
  std::vector<sparse::ParameterSpec> parameters() const override { return linear_.parameters(); }
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override {
    linear_.bind(store, kernels);
  }

  TensorSpec output(int64_t samples, DType dtype) const override {
    return {.dtype = dtype, .shape = Shape{samples, linear_.out()}};
  }
  Tensor forward(Pass& pass, const Tensor& x) override {
    Saved saved{.x = x, .y = {}};
    if (first_) {
      saved.x = pass.tape.push("inputs", pass.dtype, pass.inputs.shape);
      pass.kernels.cast(pass.stream, {.x = pass.inputs, .y = saved.x});
    }
    const Shape shape{saved.x.rows(), linear_.out()};
    saved.y = pass.tape.push("hidden", pass.dtype, shape);
    linear_.forward(pass, {.x = saved.x, .y = saved.y});
    pass.kernels.activation(pass.stream,
                            {.kind = kernels::Activation::relu, .x = saved.y, .y = saved.y});
    apply_dropout(pass, name_, saved.y, saved.y);
    if (pass.training) {
      pass.tape.save(this, saved);
    }
    return saved.y;
  }

  Tensor backward(Pass& pass, const Tensor& dy) override {
    const auto& saved = pass.tape.saved<Saved>(this);
    apply_dropout(pass, name_, dy, dy);
    // The slope at y is that at the product, except where y was dropped, and there dy is zero.
    pass.kernels.activation_backward(
        pass.stream, {.kind = kernels::Activation::relu, .dy = dy, .x = saved.y, .dx = dy});
    linear_.backward_weight(pass, saved.x, dy, pass.accumulate);
    if (first_) {
      return {};
    }
    const Tensor dx = pass.tape.push("hidden gradient", pass.dtype, saved.x.shape);
    linear_.backward_input(pass, {.dy = dy, .dx = dx});
    return dx;
  }

 private:
  struct Saved {
    Tensor x, y;  ///< [B, in], [B, out]
  };
  std::string name_;
  Linear linear_;
  bool first_;  ///< reads pass.inputs; the gradient of its input is not needed
};

class Classifier final : public Layer {
 public:
  Classifier(int64_t in, int64_t classes)
      : linear_("classifier", in, classes,
                {.deviation = he_deviation(in),
                 .prunable = false,
                 .scaling = sparse::Scaling::logits,
                 .deviation_by_width = true}) {}

  std::string_view name() const override { return "classifier"; }
  std::vector<sparse::ParameterSpec> parameters() const override { return linear_.parameters(); }
  void bind(sparse::Store& store, const kernels::Kernels& kernels) override {
    linear_.bind(store, kernels);
  }

  Tensor forward(Pass& pass, const Tensor& x) override {
    const Tensor scores = logits(pass, x);
    Saved saved{.x = x, .dlogits = {}};
    if (pass.training) {
      saved.dlogits = pass.tape.push("logits gradient", pass.dtype, scores.shape);
    }
    compute_losses(pass, 0, scores, saved.dlogits);
    if (pass.training) {
      pass.tape.save(this, saved);
    }
    return {};
  }

  Tensor backward(Pass& pass, const Tensor& /*dy*/) override {
    const auto& saved = pass.tape.saved<Saved>(this);
    linear_.backward_weight(pass, saved.x, saved.dlogits, pass.accumulate);
    const Tensor dx = pass.tape.push("hidden gradient", pass.dtype, saved.x.shape);
    linear_.backward_input(pass, {.dy = saved.dlogits, .dx = dx});
    return dx;
  }

  Tensor logits(Pass& pass, const Tensor& x) override {
    const Tensor out = pass.tape.push("logits", DType::fp32, Shape{x.rows(), linear_.out()});
    linear_.forward(pass, {.x = x, .y = out});
    return out;
  }

 private:
  struct Saved {
    Tensor x, dlogits;  ///< [B, in], [B, classes]
  };
  Linear linear_;
};

// The registry's entry

std::unique_ptr<Layer> make_layer(const io::ModelConfig& config, const ProblemShape& problem,
                                  size_t number) {
  const int64_t in = number == 0 ? problem.features : config.hidden[number - 1];
  if (number == config.hidden.size()) {
    return std::make_unique<Classifier>(in, problem.classes);
  }
  return std::make_unique<Hidden>(fmt::format("hidden.{}", number), in, config.hidden[number],
                                  number == 0);
}

ProblemShape problem_of(const io::ModelConfig&, const MatrixShape& shape) {
  return {.classes = shape("classifier.weight")[0],
          .features = shape("hidden.0.weight")[1],
          .rows = 1,
          .input_dtype = DType::fp32};
}

constexpr std::array<std::string_view, 1> kDataKinds{"images"};

}  // namespace

extern const NetworkKind kMlp;
const NetworkKind kMlp{
    .name = "mlp",
    .help = "multilayer perceptron; classifies images",
    .data_kinds = kDataKinds,
    .input_dtype = DType::fp32,
    .check =
        [](const io::ModelConfig& config) {
          check(!config.hidden.empty(),
                "model.hidden is empty; give at least "
                "one width, e.g. [256, 256]");
        },
    .layer_count = [](const io::ModelConfig& config) { return config.hidden.size() + 1; },
    .make_layer = make_layer,
    .problem_of = problem_of,
    .identity = [](const io::ModelConfig&) { return Settings(); },
    .tied_parameter = [](const io::ModelConfig&) { return std::string_view(); },
    .describe =
        [](const io::ModelConfig& config, int64_t classes) {
          return fmt::format("mlp, hidden {}, {} classes", fmt::join(config.hidden, " "), classes);
        }};

}  // namespace espalier::model
