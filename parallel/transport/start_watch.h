#pragma once
// Start-up of MPI with a timeout. Its first calls (MPI_Init, the first collectives) cannot be
// interrupted, and wait for ever for a rank that is stopped or never started. A Watchdog watches
// the calls. Ranks of one machine write the time of their last sign of life into shared memory, so
// that the error names the silent ranks.
#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "parallel/transport/watchdog.h"

namespace espalier::parallel {

class StartWatch {
 public:
  /// Seconds. Launchers take seconds on busy machines, however fast the ranks will answer later.
  static constexpr double kShortest = 10;

  /// `on_hang` is called on another thread, once, after max(timeout, kShortest) seconds in which
  /// this process was not stopped; it should end the process. Empty: nothing is watched.
  StartWatch(double timeout, std::function<void(const std::string&)> on_hang);
  /// The calls have returned.
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  void open_roll();
  void report() const;

  double timeout_;
  std::function<void(const std::string&)> on_hang_;
  std::string path_;  ///< of the shared file; empty: the launcher does not name the job
  int rank_ = 0;
  bool one_machine_ = false;
  std::span<std::atomic<int64_t>> roll_;  ///< [ranks] last sign of life, ms; 0: none
  std::optional<Watchdog> watchdog_;
};

}  // namespace espalier::parallel
