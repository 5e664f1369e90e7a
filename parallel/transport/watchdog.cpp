#include "parallel/transport/watchdog.h"

#include <chrono>
#include <utility>

namespace espalier::parallel {

Watchdog::Watchdog(double timeout, std::function<void()> expired, std::function<void()> tick)
    : expired_(std::move(expired)),
      tick_(std::move(tick)),
      thread_([this, timeout] { watch(timeout); }) {}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::watch(double timeout) {
  constexpr std::chrono::duration<double> kTick(0.1);
  std::unique_lock lock(mutex_);
  // Counts ticks, not a clock: a clock goes on in a stopped process.
  for (double waited = 0; waited <= timeout; waited += kTick.count()) {
    if (tick_) {
      tick_();
    }
    if (changed_.wait_for(lock, kTick, [this] { return ended_; })) {
      return;
    }
  }
  expired_();
}

}  // namespace espalier::parallel
