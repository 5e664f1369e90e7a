#pragma once
// The optimizer step: one fused pass over the flat arrays of a store, by the rule that the config
// names (registry.h).
//
// One call for all parameters scales the gradient (clipping), updates the moments and the master
// copy, rounds, and writes the new values into dense copies. Weight decay acts on matrices only.
// The gradient must be summed over ranks before: then its norm, and so the update, has the same
// bits everywhere.
//
// Without a master copy, 16-bit matrices round at random (kernels::RandomRounding). The draw for an
// element is a pure function of (seed, step, parameter name, number of the element among the kept
// ones): the same bits for any sharding, and after a checkpoint.
//
// Calls are asynchronous: `enqueue` enqueues an update, `result` waits for its norm. Several
// updates may be pending.
//
// With a sharded store (ZeRO-1) a rank updates the elements that it owns, in flat order; hooks sum
// the norm and gather the values of the other ranks. Store::refresh_all then copies them.
#include <functional>

#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/optim/norm.h"
#include "src/optim/parametrization.h"
#include "src/optim/registry.h"

namespace espalier::optim {

struct StepResult {
  double gradient_norm = 0;  ///< before clipping
  bool applied = false;      ///< false: the norm is not finite, nothing was changed
};

/// A pending update.
using PendingUpdate = Staging::Arrival;

/// Collectives within a step.
struct StepHooks {
  /// Set if other ranks hold other parts of the gradient (shards or stages).
  GradientNorm::Sum sum{};
  /// Called when the update of the owned flat elements [0, end) is enqueued; ends ascend. Not
  /// called if the host knows that the update changes nothing.
  std::function<void(int64_t end)> stepped;
  /// Sees the blocks of a parameter without dense copy while they change; null: none.
  std::function<const kernels::UpdateObserver*(const sparse::Parameter&)> observer{};
};

/// Callbacks between the sum of a gradient and the update, for methods that learn from every step.
/// Gradients are too large by `scale` (Optimizer::set_scale).
struct GradientHooks {
  /// Before the norm. May change the gradient that this rank owns.
  std::function<void(int64_t step, double scale)> summed;
  /// After the norm, if it is finite on all ranks; the update follows.
  std::function<void(int64_t step, double scale)> accepted;
};

class Optimizer {
 public:
  /// `seed`: of random rounding.
  Optimizer(sparse::Store& store, const kernels::Kernels& kernels, io::OptimizerConfig config,
            uint64_t seed = 0, Parametrization parametrization = {})
      : store_(store),
        kernels_(kernels),
        config_(std::move(config)),
        kind_(optimizer_of(config_)),
        parametrization_(std::move(parametrization)),
        seed_(seed),
        norm_(store.stream(), kernels, config_.clip) {}

  /// For later updates: gradients are multiplied by `scale`. The bias correction excludes
  /// `skipped` earlier steps, which changed nothing.
  void set_scale(double scale, int64_t skipped) {
    norm_.set_scale(scale);
    scale_ = scale;
    skipped_ = skipped;
  }

  void set_hooks(GradientHooks hooks) { gradient_hooks_ = std::move(hooks); }

  /// Enqueues update `step` (0, 1, ...) of the parameters in `range`, clipped by the norm of their
  /// gradient. A sharded store needs hooks; the call is then collective.
  PendingUpdate enqueue(Stream& stream, int64_t step, double lr,
                        const sparse::ParameterRange& range, const StepHooks& hooks = {});
  const Parametrization& parametrization() const { return parametrization_; }
  /// Factor of the last enqueued update, fp32 [1], in kernels' memory.
  Tensor clip_factor() const { return norm_.factor(); }
  /// Waits for a pending update. Once for each, in the order of `enqueue`.
  StepResult result(const PendingUpdate& update);
  /// Both, for all parameters.
  StepResult step(Stream& stream, int64_t step, double lr, const StepHooks& hooks = {}) {
    return result(
        enqueue(stream, step, lr, {.first = 0, .end = store_.parameters().size()}, hooks));
  }

 private:
  struct Update {
    int64_t step;
    float lr;
    sparse::ParameterRange range;
    const StepHooks& hooks;
  };
  /// Enqueues the update of each parameter in the range that this rank owns.
  void apply(Stream& stream, const Update& update);
  kernels::UpdateArgs args_of(const sparse::Parameter& parameter, const Update& update) const;
  kernels::UpdateArgs average_args(const sparse::Parameter& parameter, const Update& update) const;

  sparse::Store& store_;
  const kernels::Kernels& kernels_;
  io::OptimizerConfig config_;
  const OptimizerKind& kind_;
  Parametrization parametrization_;
  uint64_t seed_;
  GradientNorm norm_;
  GradientHooks gradient_hooks_;
  double scale_ = 1;
  int64_t skipped_ = 0;
};

}  // namespace espalier::optim
