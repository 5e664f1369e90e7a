#include "src/optim/optimizer.h"

#include <xxhash.h>

#include <cmath>

#include "src/core/rng.h"

namespace espalier::optim {
namespace {

/// The copy that the update writes in the same pass, where that is one of the rounded values. Where
/// only a part of the values is updated here, it follows when the rest has come (Store::refresh).
Tensor copy_of(const sparse::Parameter& parameter, const sparse::OptimizerState& state) {
  const bool here = state.value.count() == parameter.kept() && !state.apart;
  return parameter.copied() && here && parameter.dense.dtype == state.value.dtype ? parameter.dense
                                                                                  : Tensor();
}

float decay_of(const sparse::Parameter& parameter, const io::OptimizerConfig& config) {
  return parameter.spec.decay ? static_cast<float>(config.weight_decay) : 0.0F;
}

/// Of the elements of `state`.
kernels::RandomRounding rounding_of(const sparse::Parameter& parameter,
                                    const sparse::OptimizerState& state, uint64_t seed,
                                    int64_t step) {
  constexpr uint64_t kRounding = 0x726f756e64;  // a stream of its own
  const std::string& name = parameter.spec.name;
  const uint64_t of_step = mix(mix(seed, kRounding), static_cast<uint64_t>(step));
  return {.key = mix(of_step, XXH64(name.data(), name.size(), 0)), .first = state.first};
}

}  // namespace

int moments_of(const io::OptimizerConfig& config) { return config.kind == "adamw" ? 2 : 1; }

AskedUpdate Optimizer::ask(Stream& stream, int64_t step, double lr,
                           const sparse::ParameterRange& range, const StepHooks& hooks) {
  require(!store_.options().sharding || hooks.sum, "a sharded store needs hooks");
  if (norm_.take(store_, range, hooks.sum)) {
    for (size_t p = range.end; p-- > range.first;) {  // ascending offsets
      update(stream, store_.parameters()[p], step, static_cast<float>(lr));
      if (hooks.stepped) {
        hooks.stepped(p == 0 ? store_.flat_size() : store_.parameters()[p - 1].offset);
      }
    }
  }
  return norm_.fetch();
}

StepResult Optimizer::result(const AskedUpdate& asked) {
  const kernels::Clip clip = norm_.told(asked);
  return {.gradient_norm = clip.norm, .applied = std::isfinite(clip.factor)};
}

void Optimizer::update(Stream& stream, sparse::Parameter& parameter, int64_t step, float lr) {
  const bool mine = store_.state(parameter).value.count() > 0;
  if (mine && config_.kind == "adamw") {
    adamw(stream, parameter, step, lr);
  } else if (mine) {
    sgd(stream, parameter, step, lr);
  }
  if (parameter.dense.dtype != store_.value().dtype && !store_.options().sharding) {
    store_.refresh(parameter);  // vectors: their copy is the exact master copy
  }
}

void Optimizer::adamw(Stream& stream, sparse::Parameter& parameter, int64_t step, float lr) {
  const auto count = static_cast<double>(step + 1 - left_out_);
  const sparse::OptimizerState state = store_.state(parameter);
  const Tensor copy = copy_of(parameter, state);
  kernels_.adamw(stream, kernels::AdamWArgs{
                             .gradient = state.gradient,
                             .value = state.value,
                             .low = state.low,
                             .moment1 = state.moment1,
                             .moment2 = state.moment2,
                             .scale1 = state.scale1,
                             .scale2 = state.scale2,
                             .dense = copy,
                             .positions = copy ? store_.positions(parameter) : kernels::Positions(),
                             .factor = norm_.factor(),
                             .lr = lr,
                             .beta1 = static_cast<float>(config_.beta1),
                             .beta2 = static_cast<float>(config_.beta2),
                             .epsilon = static_cast<float>(config_.epsilon),
                             .weight_decay = decay_of(parameter, config_),
                             .bias1 = static_cast<float>(1 - std::pow(config_.beta1, count)),
                             .bias2 = static_cast<float>(1 - std::pow(config_.beta2, count)),
                             .rounding = rounding_of(parameter, state, seed_, step)});
}

void Optimizer::sgd(Stream& stream, sparse::Parameter& parameter, int64_t step, float lr) {
  const sparse::OptimizerState state = store_.state(parameter);
  const Tensor copy = copy_of(parameter, state);
  kernels_.sgd(stream, kernels::SgdArgs{
                           .gradient = state.gradient,
                           .value = state.value,
                           .low = state.low,
                           .moment1 = state.moment1,
                           .scale1 = state.scale1,
                           .dense = copy,
                           .positions = copy ? store_.positions(parameter) : kernels::Positions(),
                           .factor = norm_.factor(),
                           .lr = lr,
                           .momentum = static_cast<float>(config_.momentum),
                           .weight_decay = decay_of(parameter, config_),
                           .rounding = rounding_of(parameter, state, seed_, step)});
}

}  // namespace espalier::optim
