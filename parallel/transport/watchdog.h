#pragma once
// A timeout for calls that cannot be interrupted, such as collectives of MPI itself.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace espalier::parallel {

class Watchdog {
 public:
  /// Calls `expired` once, on its own thread, after `timeout` seconds, unless destroyed earlier.
  /// Time in which this process is stopped does not count. Meanwhile calls `tick`, if set, every
  /// 0.1 s.
  Watchdog(double timeout, std::function<void()> expired, std::function<void()> tick = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch(double timeout);

  std::function<void()> expired_, tick_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace espalier::parallel
