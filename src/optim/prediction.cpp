#include "src/optim/prediction.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/core/error.h"
#include "src/optim/schedule.h"

namespace espalier::optim {
namespace {

using Term = kernels::PredictArgs::Term;

constexpr std::array<std::string_view, 7> kNames{
    "none", "stash", "2bw", "spectrain", "spectrain-consistent", "pipeoptim", "future-zero"};

/// 1 - beta^t
double correction(double beta, int64_t t) { return 1 - std::pow(beta, static_cast<double>(t)); }

/// The update's direction `ahead` times.
std::vector<Term> straight_on(const io::OptimizerConfig& config, const AheadOf& from) {
  const double lr = learning_rate(config, from.done, from.steps) * from.ahead;
  if (config.kind != "adamw") {
    return {{.step = static_cast<float>(lr)}};
  }
  return {{.step = static_cast<float>(lr / correction(config.beta1, from.done)),
           .root = static_cast<float>(1 / std::sqrt(correction(config.beta2, from.done)))}};
}

std::vector<Term> without_gradients(const io::OptimizerConfig& config, const AheadOf& from) {
  std::vector<Term> terms;
  for (int j = 1; j <= from.ahead; ++j) {
    const double lr = learning_rate(config, from.done + j - 1, from.steps);
    if (config.kind != "adamw") {
      terms.push_back({.step = static_cast<float>(lr * std::pow(config.momentum, j))});
      continue;
    }
    const double left = std::pow(config.beta1, j) / correction(config.beta1, from.done + j);
    const double decay = from.decays ? config.weight_decay : 0;
    terms.push_back(
        {.keep = static_cast<float>(1 - lr * decay),
         .step = static_cast<float>(lr * left),
         .root = static_cast<float>(1 / std::sqrt(correction(config.beta2, from.done + j)))});
  }
  return terms;
}

}  // namespace

std::span<const std::string_view> prediction_names() { return kNames; }

Prediction prediction_by_name(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  check(found != kNames.end(), "there is no weight prediction \"{}\": use one of {}", name,
        fmt::join(kNames, ", "));
  return static_cast<Prediction>(found - kNames.begin());
}

PredictionRule rule_of(Prediction prediction) {
  switch (prediction) {
    case Prediction::none:
      return {};
    case Prediction::stash:
    case Prediction::two_buffers:
      return {.reuses = true};
    case Prediction::spectrain_consistent:
      return {.predicts = true, .reuses = true};
    case Prediction::spectrain:
    case Prediction::pipeoptim:
    case Prediction::future_zero:
      return {.predicts = true};
  }
  throw Bug("a prediction that is none");
}

std::vector<Term> prediction_terms(const io::OptimizerConfig& config, Prediction prediction,
                                   const AheadOf& from) {
  require(from.done >= 1 && from.ahead >= 1, "an update to go on from", from.done, from.ahead);
  return prediction == Prediction::future_zero ? without_gradients(config, from)
                                               : straight_on(config, from);
}

}  // namespace espalier::optim
