#pragma once
// A network, or a part of one: contiguous layers, run forward and in reverse. A pipeline stage owns
// such a part; a single rank owns all layers.
#include <functional>
#include <memory>
#include <vector>

#include "src/model/layer.h"

namespace espalier::model {

class Network {
 public:
  explicit Network(Layers layers);

  /// Call once, before the first pass; store and kernels outlive the network.
  void bind(sparse::Store& store, const kernels::Kernels& kernels);
  const Layers& layers() const { return layers_; }

  /// `x`: the output of the layer before, on the tape; empty if these layers begin the network.
  /// Returns the output of the first `count` layers; if they end the network, writes the losses
  /// and returns {}. With pass.training the tape holds the tensors that `backward` needs.
  Tensor forward(Pass& pass, Tensor x = {}, size_t count = SIZE_MAX) const;
  /// After `forward` on the same tape. `dy`: gradient of the output, on the tape, may be
  /// overwritten; empty if these layers end the network. Returns the gradient of x, on the tape;
  /// empty if they begin it. `done(i)` is called when the gradients of layers i and later are
  /// complete, except those that pass.deferred defers.
  Tensor backward(Pass& pass, const Tensor& dy = {},
                  const std::function<void(size_t)>& done = {}) const;
  /// Predictions for rows [first, first + rows) of the micro-batch, fp32 [rows, classes], on the
  /// tape. Inference only. `x`: as in forward.
  Tensor logits(Pass& pass, int64_t first, int64_t rows, const Tensor& x = {}) const;
  /// The input of the last layer, on the tape, for `logits_of`. Inference with all layers only. On
  /// the tape it needs the outputs of two layers at a time, if they have one shape.
  Tensor hidden(Pass& pass) const;
  Tensor logits_of(Pass& pass, const Tensor& hidden, int64_t first, int64_t rows) const {
    return layers_.back()->logits(pass, hidden.row_range(first, rows));
  }

 private:
  bool replays(const Pass& pass, size_t layer) const;

  Layers layers_;
  std::vector<std::string> backward_names_;  ///< for the timeline
};

}  // namespace espalier::model
