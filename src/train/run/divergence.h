#pragma once
// Detects a run that diverges while its numbers are still finite.
//
//   L(t), G(t)   moving means of loss and gradient norm, decay 0.8
//   L_low        least L since the start, or since masks changed; G_low: G at that step
//   diverges     L - L_low > limit = max(0.5, 0.2 L_low), in nats
//
// After a warning the next one needs L - L_low to fall below limit / 2 first. Only tells the user:
// it changes nothing in the run. O(1) a step.
#include <cstdint>
#include <optional>
#include <string>

#include "io/config/config.h"

namespace espalier::train {

class DivergenceMonitor {
 public:
  explicit DivergenceMonitor(const io::OptimizerConfig& config) : config_(config) {}

  struct Step {
    int64_t step = 0;  ///< from 1
    double loss = 0;
    double gradient_norm = 0;  ///< not finite: the step was skipped, and is ignored
    double lr = 0;
  };
  /// The warning to show after a step, with its fix.
  std::optional<std::string> add(const Step& step);
  /// At the start, and after masks have changed: a higher loss is then usual. `largest_factor`: of
  /// the learning rates of all parameters (src/optim/parametrization.h).
  void restart(double largest_factor);

 private:
  struct Means {
    int64_t step = 0;
    double loss = 0;
    double norm = 0;
  };
  std::string warning(const Step& step) const;

  io::OptimizerConfig config_;
  double largest_factor_ = 1;
  std::optional<Means> now_;
  std::optional<Means> lowest_;
  bool warned_ = false;
};

}  // namespace espalier::train
