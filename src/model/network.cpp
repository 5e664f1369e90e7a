#include "src/model/network.h"

#include "src/core/trace.h"

namespace espalier::model {

Network::Network(std::vector<std::unique_ptr<Layer>> layers) : layers_(std::move(layers)) {
  for (const auto& layer : layers_) {
    backward_names_.push_back(std::string(layer->name()) + " backward");
  }
}

std::vector<sparse::ParameterSpec> Network::parameters() const {
  std::vector<sparse::ParameterSpec> all;
  for (const auto& layer : layers_) {
    for (auto& spec : layer->parameters()) {
      all.push_back(std::move(spec));
    }
  }
  return all;
}

void Network::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  for (const auto& layer : layers_) {
    layer->bind(store, kernels);
  }
}

Tensor Network::run_until_last(Pass& pass) const {
  Tensor x;
  for (size_t i = 0; i + 1 < layers_.size(); ++i) {
    const Span span(Track::compute, layers_[i]->name());
    x = layers_[i]->forward(pass, x);
  }
  return x;
}

void Network::forward(Pass& pass) const {
  const Tensor x = run_until_last(pass);
  const Span span(Track::compute, layers_.back()->name());
  layers_.back()->forward(pass, x);
}

void Network::backward(Pass& pass, const std::function<void(size_t)>& done) const {
  Tensor gradient;
  for (size_t i = layers_.size(); i-- > 0;) {
    {
      const Span span(Track::compute, backward_names_[i]);
      gradient = layers_[i]->backward(pass, gradient);
    }
    if (done) {
      done(i);
    }
  }
}

Tensor Network::logits(Pass& pass, int64_t first, int64_t rows) const {
  require(!pass.training, "logits are for inference");
  return layers_.back()->logits(pass, run_until_last(pass).row_range(first, rows));
}

}  // namespace espalier::model
