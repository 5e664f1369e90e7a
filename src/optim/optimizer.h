#pragma once
// The optimizer step: one fused pass over the flat arrays of a store, by the rule that the config
// names (registry.h).
//
// One call for all parameters scales the gradient (clipping), updates the moments and the master
// copy, rounds, and writes the new values into dense copies. Weight decay acts on matrices only.
// The gradient must be summed over ranks before: then its norm, and so the update, has the same
// bits everywhere.
//
// Where matrices in 16 bits have no master copy beside their values, an update rounds at random
// (kernels.h, RandomRounding). What it draws for an element is a pure function of (seed, step, name
// of the parameter, the element's number among its kept ones): the same bits however ranks share
// out the elements, and after a checkpoint.
//
// On a device an update is asked for, like all that comes before it, and what came of it is told
// later (norm.h); the next may be asked for in between.
//
// Of a sharded store (ZeRO-1) a rank steps what it owns, in flat order; hooks sum up the norm, and
// bring the values of the other ranks. Copies of values then follow by Store::refresh_all.
#include <functional>

#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/optim/norm.h"
#include "src/optim/registry.h"

namespace espalier::optim {

struct StepResult {
  double gradient_norm = 0;  ///< before clipping
  bool applied = false;      ///< false: the norm is not finite, nothing was changed
};

/// An update that has been asked for, for `result`.
using AskedUpdate = Staging::Arrival;

/// What ranks that share out the optimizer do between the parts of a step.
struct StepHooks {
  /// Where other ranks hold other parts of the gradient: slices, or stages.
  GradientNorm::Sum sum{};
  /// The owned values of flat elements [0, end) are new. Comes with ascending ends; not at all
  /// where the host knows that nothing changes.
  std::function<void(int64_t end)> stepped;
};

class Optimizer {
 public:
  /// `seed`: of what rounding draws.
  Optimizer(sparse::Store& store, const kernels::Kernels& kernels, io::OptimizerConfig config,
            uint64_t seed = 0)
      : store_(store),
        kernels_(kernels),
        config_(std::move(config)),
        kind_(optimizer_of(config_)),
        seed_(seed),
        norm_(store.stream(), kernels, config_.clip) {}

  /// Of what is asked for from now on: gradients are `scale` times too large, and a bias
  /// correction does not count `left_out` of the steps so far, which changed nothing.
  void set_scale(double scale, int64_t left_out) {
    norm_.set_scale(scale);
    left_out_ = left_out;
  }

  /// Asks for the update of step `step` (0, 1, …) with learning rate `lr`, of some parameters, which
  /// are clipped by their own norm. Collective when the store is sharded, which needs hooks.
  AskedUpdate ask(Stream& stream, int64_t step, double lr, const sparse::ParameterRange& range,
                  const StepHooks& hooks = {});
  /// Of the update asked for last, fp32 [1], as kernels find it.
  Tensor clip_factor() const { return norm_.factor(); }
  /// Waits for it; once each, in their order.
  StepResult result(const AskedUpdate& asked);
  /// Both, of all parameters.
  StepResult step(Stream& stream, int64_t step, double lr, const StepHooks& hooks = {}) {
    return result(ask(stream, step, lr, {.first = 0, .end = store_.parameters().size()}, hooks));
  }

 private:
  struct Update {
    int64_t step;
    float lr;
    sparse::ParameterRange range;
    const StepHooks& hooks;
  };
  /// Of each parameter in the range that this rank owns.
  void apply(Stream& stream, const Update& update);
  kernels::UpdateArgs args_of(const sparse::Parameter& parameter, const Update& update) const;

  sparse::Store& store_;
  const kernels::Kernels& kernels_;
  io::OptimizerConfig config_;
  const OptimizerKind& kind_;
  uint64_t seed_;
  GradientNorm norm_;
  int64_t left_out_ = 0;
};

}  // namespace espalier::optim
