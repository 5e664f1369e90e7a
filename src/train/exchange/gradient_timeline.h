#pragma once
// When the gradients of a step become final, while others are still computed. On the CPU that is
// when it is told. On a device kernels are then only asked for: a mark stands behind them, and the
// host sees that it has passed when it asks for the next ones, and at the end, when it waits. So
// there only steps are watched at whose end the host waits anyway.
#include <cstdint>
#include <vector>

#include "src/core/stream.h"

namespace espalier::train {

/// [gradients]: `ready` seconds after the step began those of flat elements up to `ends` were
/// final; `backward`: all.
struct Readiness {
  std::vector<int64_t> ends;
  std::vector<double> ready;
  double backward = 0;
};

class ReadinessClock {
 public:
  /// `stream` computes gradients, and must outlive it.
  explicit ReadinessClock(Stream& stream) : stream_(stream) {}

  /// A step begins. `waits`: at its end the host waits for the kernels.
  void begin(bool waits);
  /// Elements [0, end) have been asked for.
  void ready(int64_t end);
  /// All have. On a device that waits where `begin` said so.
  void finish();
  /// Of this step, in which sums wait for the end; on the CPU rather of the one before, if there
  /// was one, in which they were on their way meanwhile.
  const Readiness& found() const { return before_.ends.empty() ? now_ : before_; }

 private:
  void look();

  Stream& stream_;
  bool watches_ = false;
  std::vector<Mark> marks_;    ///< of the begin, of each end, and of all
  std::vector<double> times_;  ///< when those that have been seen to pass were
  Readiness now_, before_;
};

}  // namespace espalier::train
