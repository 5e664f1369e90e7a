#pragma once
// The optimizer: one fused pass over the flat arrays of a store.
//
// For each parameter a single kernel scales the gradient (clipping), updates the moments and the
// master copy, rounds, and writes the new values into the dense copy. AdamW (decoupled decay) or
// SGD with momentum. Weight decay acts on matrices only. The gradient must be summed over ranks
// before: then its norm, and so the update, has the same bits everywhere.
//
// Of a sharded store (ZeRO-1) a rank steps what it owns, in flat order; hooks sum up the norm, and
// bring the values of the other ranks. Copies of values then follow by Store::refresh_all.
#include <functional>
#include <span>

#include "io/config.h"
#include "sparse/store.h"
#include "src/optim/norm.h"

namespace espalier::optim {

/// How many moments the optimizer of this config keeps.
int moments_of(const io::OptimizerConfig& config);

struct StepResult {
  double gradient_norm = 0;  ///< before clipping
  bool applied = false;      ///< false: the norm is not finite, nothing was changed
};

/// What ranks that share out the optimizer do between the parts of a step.
struct StepHooks {
  /// Adds whole numbers of all ranks that hold other parts of the gradient: slices, or stages.
  std::function<void(std::span<double>)> sum;
  /// The owned values of flat elements [0, end) are new. Comes with ascending ends.
  std::function<void(int64_t end)> stepped;
};

class Optimizer {
 public:
  Optimizer(sparse::Store& store, const kernels::Kernels& kernels, io::OptimizerConfig config)
      : store_(store), kernels_(kernels), config_(std::move(config)), squares_(store.stream()) {}

  /// The update of step `step` (0, 1, …) with learning rate `lr`. Collective when the store is
  /// sharded, which needs hooks.
  StepResult step(Stream& stream, int64_t step, double lr, const StepHooks& hooks = {});
  /// The same for some of the parameters; clipped by their own norm.
  StepResult step(Stream& stream, int64_t step, double lr, const sparse::ParameterRange& range,
                  const StepHooks& hooks = {});

 private:
  double gradient_norm(const sparse::ParameterRange& range, const StepHooks& hooks);
  void adamw(Stream& stream, sparse::Parameter& parameter, int64_t step, float lr, float scale);
  void sgd(Stream& stream, sparse::Parameter& parameter, float lr, float scale);

  sparse::Store& store_;
  const kernels::Kernels& kernels_;
  io::OptimizerConfig config_;
  SquareSums squares_;
};

}  // namespace espalier::optim
