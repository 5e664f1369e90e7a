#pragma once
// Work beside the training: one thread of the lowest priority runs tasks in their order.
//
// The thread gets a core that the training leaves idle, and 1.5 % of a busy one. When the training
// must wait for the tasks, it runs those that have not begun: a thread that gets no core delays the
// training by at most one task.
//
// Calls come from one thread. Tasks must not use communicators.
#include <functional>
#include <memory>

namespace espalier::train {

class Background {
 public:
  /// Without a thread tasks run in `finish` only (simulations, whose order must be determined).
  explicit Background(bool has_thread);
  ~Background();  ///< cancels
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  bool has_thread() const { return has_thread_; }
  void add(std::function<void()> task);
  /// Whether all tasks have ended. Throws what a task has thrown; later tasks are then dropped.
  bool done();
  /// Runs the tasks that have not begun, and waits for the one that has. Throws as `done`.
  void finish();
  /// Drops the tasks that have not begun, and waits for the one that has.
  void cancel();

 private:
  struct State;
  /// Runs one task; false: there is none.
  static bool run_next(State& state);
  static void run_thread(const std::shared_ptr<State>& state);

  bool has_thread_;
  bool started_ = false;
  /// Shared with the thread, which may end after this object: it may get no core for long.
  std::shared_ptr<State> state_;
};

}  // namespace espalier::train
