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

/// With full recompute, layers that can replay run as in inference; their input stays.
Tensor Network::run_until_last(Pass& pass) const {
  Tensor x;
  for (size_t i = 0; i + 1 < layers_.size(); ++i) {
    const Span span(Track::compute, layers_[i]->name());
    if (replays(pass, i)) {
      pass.tape.save(&layers_[i], x);
      Pass passing = pass;
      passing.training = false;
      x = layers_[i]->forward(passing, x);
    } else {
      x = layers_[i]->forward(pass, x);
    }
  }
  return x;
}

bool Network::replays(const Pass& pass, size_t layer) const {
  return pass.training && pass.recompute == Recompute::full && layers_[layer]->can_replay();
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
      if (replays(pass, i)) {
        const Tape::Scope replayed(pass.tape);
        layers_[i]->replay(pass, pass.tape.saved<Tensor>(&layers_[i]));
        gradient = layers_[i]->backward(pass, gradient);
      } else {
        gradient = layers_[i]->backward(pass, gradient);
      }
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
