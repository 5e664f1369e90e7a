#pragma once
// Batch normalisation with its parameters (formulas: src/kernels/operations/batch_norm.h). It keeps
// no activations: callers pass what backward needs.
//
// In training the statistics are those of one micro-batch on one rank ("ghost" statistics): the
// same for any number of ranks and stages, as long as train.micro_batch stays; with
// pass.batch.replicas, those of the micro-batches of all replicas together. Otherwise they are
// moving averages, the parameters NAME.mean and NAME.variance:
//
//   average += 0.1 (batch - average) a step, batch: mean over the micro-batches of the step, by
//   their number of samples; of the variance without bias, pixels / (pixels - 1)
//
// Their "gradient" is average - batch, so it is summed over micro-batches and replicas, sharded and
// saved like any gradient; the update rule is kernels::UpdateRule::average.
#include <string>
#include <vector>

#include "src/model/layer.h"

namespace espalier::model {

class BatchNorm {
 public:
  BatchNorm(std::string name, int64_t channels) : name_(std::move(name)), channels_(channels) {}

  std::vector<sparse::ParameterSpec> parameters() const;
  void bind(sparse::Store& store);

  /// Input and statistics, for `forward` and `backward`.
  struct Saved {
    Tensor x, mean, variance;
  };
  /// Pushes the statistics of x [R, C], any. Throws Failure in training if R is 1.
  Saved prepare(Pass& pass, const Tensor& x) const;

  struct Apply {
    Tensor y;
    Tensor addend;  ///< or empty
    bool rectify = false;
  };
  /// y = f(x^ weight + bias + addend).
  void forward(Pass& pass, const Saved& saved, const Apply& apply) const;

  /// dx = gradient at x; dy becomes the gradient at the addend. `y`: of a rectified forward, or
  /// empty. dx may be dy.
  void backward(Pass& pass, const Saved& saved, const Tensor& y, const Tensor& dy,
                const Tensor& dx) const;

 private:
  std::string name_;
  int64_t channels_;
  sparse::Store* store_ = nullptr;
  sparse::Parameter *weight_ = nullptr, *bias_ = nullptr, *mean_ = nullptr, *variance_ = nullptr;
};

}  // namespace espalier::model
