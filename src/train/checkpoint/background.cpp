#include "src/train/checkpoint/background.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace espalier::train {

struct Background::State {
  std::mutex mutex;  ///< of all but `unfinished`
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;  ///< that have not begun
  bool running = false;                     ///< a task runs
  bool ended = false;                       ///< no task is added any more
  std::exception_ptr error;                 ///< read while no task exists
  /// Tasks that have not ended. Read without the mutex: a thread of low priority may be stopped
  /// while it holds that.
  std::atomic<size_t> unfinished = 0;

  void drop_tasks() {
    unfinished -= tasks.size();
    tasks.clear();
  }
};

namespace {

/// Of the calling thread; on Linux a nice value is a thread's. A system that refuses keeps the
/// usual priority.
void take_lowest_priority() {
  constexpr int kLowest = 19;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowest);
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace

/// Each task begins after the end of the one before.
bool Background::run_next(State& state) {
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return !state.running; });
  if (state.tasks.empty()) {
    return false;
  }
  std::function<void()> task = std::move(state.tasks.front());
  state.tasks.pop_front();
  state.running = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    task();
  } catch (...) {
    error = std::current_exception();
  }
  task = nullptr;  // its memory is free before it counts as ended
  lock.lock();
  if (error) {
    state.error = error;
    state.drop_tasks();
  }
  state.running = false;
  --state.unfinished;
  state.changed.notify_all();
  return true;
}

void Background::run_thread(const std::shared_ptr<State>& state) {
  take_lowest_priority();
  for (;;) {
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->ended || !state->tasks.empty(); });
      if (state->ended) {
        return;
      }
    }
    run_next(*state);
  }
}

Background::Background(bool has_thread)
    : has_thread_(has_thread), state_(std::make_shared<State>()) {}

Background::~Background() {
  cancel();
  const std::scoped_lock lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
}

void Background::add(std::function<void()> task) {
  if (has_thread_ && !std::exchange(started_, true)) {
    std::thread([state = state_] { run_thread(state); }).detach();
  }
  const std::scoped_lock lock(state_->mutex);
  state_->tasks.push_back(std::move(task));
  ++state_->unfinished;
  state_->changed.notify_all();
}

bool Background::done() {
  if (state_->unfinished > 0) {
    return false;
  }
  if (state_->error) {
    std::rethrow_exception(std::exchange(state_->error, nullptr));
  }
  return true;
}

void Background::finish() {
  while (run_next(*state_)) {
  }
  done();
}

void Background::cancel() {
  std::unique_lock lock(state_->mutex);
  state_->drop_tasks();
  state_->changed.wait(lock, [&] { return !state_->running; });
}

}  // namespace espalier::train
