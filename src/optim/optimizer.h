#pragma once
// The optimizer: one fused pass over the flat arrays of a store.
//
// For each parameter a single kernel scales the gradient (clipping), updates the moments and the
// master copy, rounds, and writes the new values into the dense copy. AdamW (decoupled decay) or
// SGD with momentum. Weight decay acts on matrices only. The gradient must be summed over ranks
// before: then its norm, and so the update, has the same bits everywhere.
#include "io/config.h"
#include "sparse/store.h"

namespace espalier::optim {

/// How many moments the optimizer of this config keeps.
int moments_of(const io::OptimizerConfig& config);

struct StepResult {
  double gradient_norm = 0;  ///< before clipping
  bool applied = false;      ///< false: the norm is not finite, nothing was changed
};

class Optimizer {
 public:
  Optimizer(sparse::Store& store, const kernels::Kernels& kernels, io::OptimizerConfig config)
      : store_(store), kernels_(kernels), config_(std::move(config)) {}

  /// The update of step `step` (0, 1, …) with learning rate `lr`.
  StepResult step(Stream& stream, int64_t step, double lr);

 private:
  void adamw(Stream& stream, sparse::Parameter& parameter, int64_t step, float lr, float scale);
  void sgd(Stream& stream, sparse::Parameter& parameter, float lr, float scale);

  sparse::Store& store_;
  const kernels::Kernels& kernels_;
  io::OptimizerConfig config_;
};

}  // namespace espalier::optim
