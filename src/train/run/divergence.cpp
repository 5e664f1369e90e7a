#include "src/train/run/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace espalier::train {
namespace {

constexpr double kDecay = 0.8;

double limit_above(double lowest) { return std::max(0.5, 0.2 * lowest); }

}  // namespace

void DivergenceMonitor::restart(double largest_factor) {
  largest_factor_ = largest_factor;
  now_.reset();
  lowest_.reset();
  warned_ = false;
}

std::optional<std::string> DivergenceMonitor::add(const Step& step) {
  if (!std::isfinite(step.loss) || !std::isfinite(step.gradient_norm)) {
    return {};
  }
  const auto mean = [](double before, double value) {
    return kDecay * before + (1 - kDecay) * value;
  };
  now_ = now_ ? Means{.step = step.step,
                      .loss = mean(now_->loss, step.loss),
                      .norm = mean(now_->norm, step.gradient_norm)}
              : Means{.step = step.step, .loss = step.loss, .norm = step.gradient_norm};
  if (!lowest_ || now_->loss < lowest_->loss) {
    lowest_ = now_;
  }
  const double above = now_->loss - lowest_->loss;
  const double limit = limit_above(lowest_->loss);
  if (warned_) {
    warned_ = above > limit / 2;
    return {};
  }
  warned_ = above > limit;
  return warned_ ? std::optional(warning(step)) : std::nullopt;
}

std::string DivergenceMonitor::warning(const Step& step) const {
  const std::string scaled =
      largest_factor_ > 1
          ? fmt::format(", times up to {:.3g} by train.parametrization", largest_factor_)
          : "";
  std::string fixes = "lower optimizer.lr";
  if (step.step <= 2 * config_.warmup_steps) {
    fixes += fmt::format(", raise optimizer.warmup_steps ({})", config_.warmup_steps);
  }
  fixes += config_.clip > 0 ? fmt::format(", or lower optimizer.clip ({:g})", config_.clip)
                            : ", or set optimizer.clip (for example 1)";
  return fmt::format(
      "the run diverges: mean loss {:.3f} at step {}, {:.3f} at step {}; gradient norm {:.3g}, "
      "then "
      "{:.3g}; learning rate {:.3g}{}. If it does not recover: {}, and resume from a checkpoint "
      "before step {}",
      lowest_->loss, lowest_->step, now_->loss, now_->step, lowest_->norm, now_->norm, step.lr,
      scaled, fixes, lowest_->step + 1);
}

}  // namespace espalier::train
