#include "src/optim/optimizer.h"

#include <xxhash.h>

#include <cmath>

#include "src/core/mirror.h"
#include "src/core/rng.h"

namespace espalier::optim {
namespace {

/// Elements updated at a time if other ranks wait for the values.
constexpr int64_t kElementsTogether = int64_t{4} << 20;

/// The dense copy that the update writes in the same pass: of the values, or, for vectors in 16-bit
/// runs, of the exact master copy. Empty if only a shard of the values is updated here or they are
/// not the master copy: Store::refresh_all then writes it.
Tensor copy_of(const sparse::Store& store, const sparse::Parameter& parameter,
               const sparse::OptimizerState& state) {
  const bool here = state.value.count() == parameter.kept() && !state.separate_master;
  const bool follows = parameter.exact_copy() && store.options().sharding;
  return parameter.copied() && here && !follows ? parameter.dense : Tensor();
}

float decay_of(const sparse::Parameter& parameter, const io::OptimizerConfig& config) {
  return parameter.spec.decay ? static_cast<float>(config.weight_decay) : 0.0F;
}

/// Random rounding of the elements of `state`.
kernels::RandomRounding rounding_of(const sparse::Parameter& parameter,
                                    const sparse::OptimizerState& state, uint64_t seed,
                                    int64_t step) {
  constexpr uint64_t kRounding = 0x726f756e64;  // key of a separate random stream
  const std::string& name = parameter.spec.name;
  const uint64_t of_step = mix(mix(seed, kRounding), static_cast<uint64_t>(step));
  return {.key = mix(of_step, XXH64(name.data(), name.size(), 0)), .first = state.first};
}

}  // namespace

PendingUpdate Optimizer::enqueue(Stream& stream, int64_t step, double lr,
                                 const sparse::ParameterRange& range, const StepHooks& hooks) {
  require(!store_.options().sharding || hooks.sum, "a sharded store needs hooks");
  if (gradient_hooks_.summed) {
    gradient_hooks_.summed(step, scale_);
  }
  if (norm_.enqueue(store_, range, hooks.sum)) {
    if (gradient_hooks_.accepted) {
      const Mirror factor(stream, norm_.factor());
      if (std::isfinite(*factor.read().host().get<float>())) {
        gradient_hooks_.accepted(step, scale_);
      }
    }
    apply(stream, {.step = step, .lr = static_cast<float>(lr), .range = range, .hooks = hooks});
  }
  return norm_.fetch();
}

StepResult Optimizer::result(const PendingUpdate& update) {
  const kernels::Clip clip = norm_.result(update);
  return {.gradient_norm = clip.norm, .applied = std::isfinite(clip.factor)};
}

void Optimizer::apply(Stream& stream, const Update& update) {
  const UpdateStep step{.config = config_, .count = update.step + 1 - skipped_, .lr = update.lr};
  std::vector<kernels::UpdateArgs> together;
  std::vector<kernels::UpdateArgs> averages;
  int64_t elements = 0;
  const auto parameters = store_.parameters();
  for (size_t p = update.range.end; p-- > update.range.first;) {  // ascending offsets
    if (store_.state(parameters[p]).value.count() > 0) {
      if (parameters[p].spec.average) {
        averages.push_back(average_args(parameters[p], update));
      } else {
        kind_.set(step, together.emplace_back(args_of(parameters[p], update)));
      }
    }
    elements += parameters[p].kept();
    const bool waited_for = update.hooks.stepped && elements >= kElementsTogether;
    if (p > update.range.first && !waited_for && !store_.decodes_positions(parameters[p])) {
      continue;  // decoded positions are valid until the next decoding
    }
    for (auto* const updates : {&together, &averages}) {  // those of a call have one rule
      kernels_.update(stream, *updates);
      updates->clear();
    }
    elements = 0;
    if (update.hooks.stepped) {
      update.hooks.stepped(p == 0 ? store_.flat_size() : parameters[p - 1].offset);
    }
  }
}

/// The update of a moving average: by a tenth of the way, if that of the step is finite.
kernels::UpdateArgs Optimizer::average_args(const sparse::Parameter& parameter,
                                            const Update& update) const {
  kernels::UpdateArgs args = args_of(parameter, update);
  args.rule = kernels::UpdateRule::average;
  args.moment2 = {};
  args.scale2 = {};
  args.lr = 0.1F;
  args.weight_decay = 0;
  return args;
}

kernels::UpdateArgs Optimizer::args_of(const sparse::Parameter& parameter,
                                       const Update& update) const {
  const sparse::OptimizerState state = store_.state(parameter);
  const Tensor dense = copy_of(store_, parameter, state);
  const auto factor = static_cast<float>(parametrization_.factors_of(parameter).lr);
  return {.rule = kind_.rule,
          .gradient = state.gradient,
          .value = state.value,
          .low = state.low,
          .moment1 = state.moment1,
          .moment2 = state.moment2,
          .scale1 = state.scale1,
          .scale2 = state.scale2,
          .dense = dense,
          .positions = dense ? store_.positions(parameter) : kernels::Positions(),
          .factor = norm_.factor(),
          .lr = update.lr * factor,
          .weight_decay = decay_of(parameter, config_) / factor,
          .rounding = rounding_of(parameter, state, seed_, update.step),
          .observer = update.hooks.observer && !dense ? update.hooks.observer(parameter) : nullptr};
}

}  // namespace espalier::optim
