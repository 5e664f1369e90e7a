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
  explicit Network(std::vector<std::unique_ptr<Layer>> layers);
  /// Layers [first, end) of `layers`; the others are dropped.
  static Network part(std::vector<std::unique_ptr<Layer>> layers, size_t first, size_t end);

  /// Of all layers, in forward order.
  std::vector<sparse::ParameterSpec> parameters() const;
  /// Once, before the first pass; store and kernels outlive the network.
  void bind(sparse::Store& store, const kernels::Kernels& kernels);
  const std::vector<std::unique_ptr<Layer>>& layers() const { return layers_; }

  /// `x`: the output of the layers before, on the tape; empty at the beginning of the network.
  /// Returns the output; at the end of the network, where pass.losses is filled, an empty one. With
  /// pass.training the tape keeps what `backward` needs.
  Tensor forward(Pass& pass, const Tensor& x = {}) const;
  /// After `forward` on the same tape. `dy`: gradient of the output, on the tape, may be
  /// overwritten; empty at the end of the network. Returns the gradient of x, on the tape; empty at
  /// the beginning. `done(i)`: the gradients of layers i and later are complete (but for
  /// pass.waiting).
  Tensor backward(Pass& pass, const Tensor& dy = {},
                  const std::function<void(size_t)>& done = {}) const;
  /// What the last layer predicts for rows [first, first + rows) of the micro-batch, fp32 [rows,
  /// classes], on the tape. Runs without training. `x`: as in forward.
  Tensor logits(Pass& pass, int64_t first, int64_t rows, const Tensor& x = {}) const;

 private:
  Tensor run(Pass& pass, Tensor x, size_t end) const;
  bool replays(const Pass& pass, size_t layer) const;

  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<std::string> backward_names_;  ///< for the timeline
};

}  // namespace espalier::model
