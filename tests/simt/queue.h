#pragma once
// A device stream on the host. It stores enqueued work and runs it only on a wait: of the host for
// the queue or one of its events, or of another running queue that reaches such an event.
// - A result read without waiting is an old one.
// - A queue that does not wait for another finds that the other has done nothing.
// - Copies and fills are delayed like kernels; their source is read late as well.
// - Work that depends on a missing message is polled while the host waits.
//
// A recording stores the calls on its queues and enqueues them again on replay. These throw Bug
// during a recording:
// - waiting or polling;
// - following work outside the recording;
// - ending it before all of its queues have joined.
//
// Queues that share events are used by one thread.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "src/core/stream.h"
#include "tests/simt/engine.h"

namespace espalier::simt {

class Queue;

/// A point in a queue's work. Waiting for an event that is not recorded returns at once.
class Event {
 public:
  void synchronize() const;

 private:
  friend class Queue;
  Queue* queue_ = nullptr;
  int64_t until_ = 0;
};

/// Recorded calls of queues that follow each other, in order.
struct Script final : Recording {
  struct Place {
    Queue* queue = nullptr;
    int64_t enqueued = 0;  ///< tasks enqueued before
    Mark now = 0;          ///< mark in the replay under way
  };
  Queue* first = nullptr;
  std::vector<std::function<void()>> calls;  ///< each enqueues its work again
  std::map<Mark, Place> marks;
  std::map<Queue*, int64_t> enqueued;  ///< tasks, by queue
  std::map<Queue*, int64_t> joined;    ///< tasks of another queue that the first follows
};

/// Fault injection for all later recordings: call number `call` (from 0) throws Failure; if the
/// recording has fewer calls, its end returns no recording; -1: none.
void refuse_recordings(int64_t call);

class Queue : public espalier::Queue {
 public:
  explicit Queue(Order order = Order::ascending) : order_(order) {}

  void synchronize() override;
  void copy(void* to, const void* from, size_t bytes) override;
  Mark mark() override;
  bool passed(Mark mark) override;
  void wait(Mark mark) override;
  std::unique_ptr<espalier::Queue> make_queue() override;
  void follow(espalier::Queue& other, Mark mark) override;
  bool begin_recording() override;
  std::unique_ptr<Recording> end_recording() override;
  void replay(Recording& recording) override;
  void* handle() override { return this; }
  std::string device_id() const override;
  virtual void fill(void* to, int byte, size_t bytes);
  void record(Event& event);
  void wait(const Event& event);

  /// `shape`: {.name, .grid, .block, .shared_bytes}.
  template <class Shape, class... Params>
  void launch(const Shape& shape, void (*kernel)(Params...), Params... arguments) {
    const Grid grid{.name = shape.name,
                    .blocks = {shape.grid.x, shape.grid.y, shape.grid.z},
                    .threads = {shape.block.x, shape.block.y, shape.block.z},
                    .shared_bytes = shape.shared_bytes};
    launches_.push_back(grid);
    enqueue([grid, kernel, order = order_, all = std::make_tuple(arguments...)] {
      run_grid(grid, order, [&] { std::apply(kernel, all); });
    });
  }

  /// The device's copy of an array that the host never changes.
  const void* constant(const void* host, size_t bytes);

  Order order() const { return order_; }
  /// Tasks enqueued and not done.
  int64_t waiting() const { return enqueued_ - done_; }
  /// Kernels, copies and fills enqueued.
  int64_t enqueued() const { return enqueued_; }
  /// As `enqueued`, but a replay counts once.
  int64_t calls() const { return calls_; }
  int64_t replays() const { return replays_; }
  /// Kernels only, in order; kernels of a recording count once.
  const std::vector<Grid>& launches() const { return launches_; }
  /// Host waits for the whole queue, and for marks that had not passed.
  int64_t synchronized() const { return synchronized_; }
  int64_t waited() const { return waited_; }
  /// Index, counted as in `enqueued`, of the last task that the host has waited for, done or not.
  int64_t waited_until() const { return waited_until_; }

  void enqueue(std::function<void()> task);
  /// Enqueues a task that returns whether it is done; later tasks wait for it.
  void enqueue_until(std::function<bool()> task);
  /// Runs the tasks that can run among the first `count`; returns whether all are done.
  bool advance(int64_t count);
  /// As `advance`, but waits.
  void run_until(int64_t count);

 protected:
  Queue(const Queue& first, Order order) : espalier::Queue(&first), order_(order) {}
  bool recording() const { return script_ != nullptr; }
  /// Stores a call for replay.
  void keep(std::function<void()> call);

 private:
  void follow_recorded(Queue& other, Mark mark);
  /// Called before and after work runs.
  virtual void begin_work() {}
  virtual void end_work() noexcept {}

  Order order_;
  std::deque<std::function<bool()>> tasks_;
  std::vector<Grid> launches_;
  std::map<const void*, std::unique_ptr<std::byte[]>> constants_;
  int64_t enqueued_ = 0, done_ = 0, synchronized_ = 0, waited_ = 0, waited_until_ = 0;
  int64_t polls_ = 0, calls_ = 0, replays_ = 0;
  std::unique_ptr<Script> kept_;  ///< of a recording that this queue began
  Script* script_ = nullptr;      ///< while calls are recorded
  Script* replayed_ = nullptr;    ///< during a replay
  bool at_work_ = false;          ///< a task is running: it may reach an event of its own queue
};

}  // namespace espalier::simt
