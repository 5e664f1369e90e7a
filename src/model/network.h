#pragma once
// A network: a list of layers, run forward and in reverse. A pipeline stage will own a contiguous
// part of the list; a single rank owns all of it.
#include <functional>
#include <memory>
#include <vector>

#include "src/model/layer.h"

namespace espalier::model {

class Network {
 public:
  explicit Network(std::vector<std::unique_ptr<Layer>> layers);

  /// Of all layers, in forward order.
  std::vector<sparse::ParameterSpec> parameters() const;
  /// Once, before the first pass; store and kernels outlive the network.
  void bind(sparse::Store& store, const kernels::Kernels& kernels);
  const std::vector<std::unique_ptr<Layer>>& layers() const { return layers_; }

  /// Fills pass.losses. With pass.training the tape keeps what `backward` needs.
  void forward(Pass& pass) const;
  /// After `forward` on the same tape. `done(i)`: the gradients of layers i and later are complete.
  void backward(Pass& pass, const std::function<void(size_t)>& done = {}) const;
  /// What the last layer predicts for rows [first, first + rows) of the micro-batch, fp32 [rows,
  /// classes], on the tape. Runs without training.
  Tensor logits(Pass& pass, int64_t first, int64_t rows) const;

 private:
  Tensor run_until_last(Pass& pass) const;
  bool replays(const Pass& pass, size_t layer) const;

  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<std::string> backward_names_;  ///< for the timeline
};

}  // namespace espalier::model
