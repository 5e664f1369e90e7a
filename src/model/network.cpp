#include "src/model/network.h"

#include <algorithm>

#include "src/core/trace.h"

namespace espalier::model {

namespace {

void after_layer(const Pass& pass) {
  if (pass.after_layer != nullptr) {
    (*pass.after_layer)();
  }
}

}  // namespace

Network::Network(Layers layers) : layers_(std::move(layers)) {
  for (const auto& layer : layers_) {
    backward_names_.push_back(std::string(layer->name()) + " backward");
  }
}

void Network::bind(sparse::Store& store, const kernels::Kernels& kernels) {
  for (const auto& layer : layers_) {
    layer->bind(store, kernels);
  }
}

/// With full recompute, layers with `replay` run as in inference and only their input is saved.
Tensor Network::forward(Pass& pass, Tensor x, size_t count) const {
  for (size_t i = 0; i < std::min(count, layers_.size()); ++i) {
    const Span span(Track::compute, layers_[i]->name());
    if (replays(pass, i)) {
      pass.tape.save(&layers_[i], x);
      Pass passing = pass;
      passing.training = false;
      x = layers_[i]->forward(passing, x);
    } else {
      x = layers_[i]->forward(pass, x);
    }
    after_layer(pass);
  }
  return x;
}

bool Network::replays(const Pass& pass, size_t layer) const {
  return pass.training && pass.recompute == Recompute::full && layers_[layer]->can_replay();
}

Tensor Network::backward(Pass& pass, const Tensor& dy,
                         const std::function<void(size_t)>& done) const {
  Tensor gradient = dy;
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
    after_layer(pass);
  }
  return gradient;
}

Tensor Network::logits(Pass& pass, int64_t first, int64_t rows, const Tensor& x) const {
  require(!pass.training, "logits are for inference");
  return logits_of(pass, forward(pass, x, layers_.size() - 1), first, rows);
}

Tensor Network::hidden(Pass& pass) const {
  require(!pass.training, "hidden states alone are for inference");
  Tensor x;
  TensorSpec before;
  for (size_t i = 0; i + 1 < layers_.size(); ++i) {
    const TensorSpec spec = layers_[i]->output(pass.samples, pass.dtype);
    const bool same = i > 0 && spec.dtype == before.dtype && spec.shape == before.shape;
    if (same) {
      const Tape::Scope layer(pass.tape);
      pass.kernels.cast(pass.stream, {.x = layers_[i]->forward(pass, x), .y = x});
    } else {
      x = layers_[i]->forward(pass, x);
    }
    before = spec;
    after_layer(pass);
  }
  return x;
}

}  // namespace espalier::model
