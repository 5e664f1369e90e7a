#include "src/optim/optimizer.h"

#include <cmath>

namespace espalier::optim {
namespace {

/// Where the dense copy is the master copy itself, there is nothing to write.
Tensor separate_dense(const sparse::Parameter& parameter) {
  return parameter.memory.tensor() ? parameter.dense : Tensor();
}

float decay_of(const sparse::Parameter& parameter, const io::OptimizerConfig& config) {
  return parameter.spec.decay ? static_cast<float>(config.weight_decay) : 0.0F;
}

}  // namespace

int moments_of(const io::OptimizerConfig& config) { return config.kind == "adamw" ? 2 : 1; }

StepResult Optimizer::step(Stream& stream, int64_t step, double lr) {
  double sum = 0;
  kernels_.sum_squares(stream, {.x = store_.gradient(), .result = &sum});
  const double norm = std::sqrt(sum);
  if (!std::isfinite(norm)) {
    return {.gradient_norm = norm, .applied = false};
  }
  const bool clips = config_.clip > 0 && norm > config_.clip;
  const auto scale = static_cast<float>(clips ? config_.clip / (norm + 1e-6) : 1.0);
  for (sparse::Parameter& parameter : store_.parameters()) {
    if (parameter.kept() == 0) {
      continue;
    }
    if (config_.kind == "adamw") {
      adamw(stream, parameter, step, static_cast<float>(lr), scale);
    } else {
      sgd(stream, parameter, static_cast<float>(lr), scale);
    }
  }
  return {.gradient_norm = norm, .applied = true};
}

void Optimizer::adamw(Stream& stream, sparse::Parameter& parameter, int64_t step, float lr,
                      float scale) {
  const auto count = static_cast<double>(step + 1);
  kernels_.adamw(stream, {.gradient = store_.part(store_.gradient(), parameter),
                          .value = store_.part(store_.master(), parameter),
                          .moment1 = store_.part(store_.moment(0), parameter),
                          .moment2 = store_.part(store_.moment(1), parameter),
                          .dense = separate_dense(parameter),
                          .positions = store_.positions(parameter),
                          .scale = scale,
                          .lr = lr,
                          .beta1 = static_cast<float>(config_.beta1),
                          .beta2 = static_cast<float>(config_.beta2),
                          .epsilon = static_cast<float>(config_.epsilon),
                          .weight_decay = decay_of(parameter, config_),
                          .bias1 = static_cast<float>(1 - std::pow(config_.beta1, count)),
                          .bias2 = static_cast<float>(1 - std::pow(config_.beta2, count))});
}

void Optimizer::sgd(Stream& stream, sparse::Parameter& parameter, float lr, float scale) {
  kernels_.sgd(stream, {.gradient = store_.part(store_.gradient(), parameter),
                        .value = store_.part(store_.master(), parameter),
                        .moment1 = store_.part(store_.moment(0), parameter),
                        .dense = separate_dense(parameter),
                        .positions = store_.positions(parameter),
                        .scale = scale,
                        .lr = lr,
                        .momentum = static_cast<float>(config_.momentum),
                        .weight_decay = decay_of(parameter, config_)});
}

}  // namespace espalier::optim
