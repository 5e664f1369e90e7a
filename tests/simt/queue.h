#pragma once
// A stream of a device, on the host: it keeps what it is asked for, and does it when somebody
// waits: the host for the queue or an event of it, or another queue that runs and meets such an
// event. So a result that was read without waiting is an old one, and a queue that forgot to wait
// for another finds that the other has done nothing yet. Copies and fills wait like kernels; their
// source is read late as well. Work that cannot be done yet, since a peer has not sent what it
// needs, is asked for again and again while the host waits.
//
// A recording keeps what was asked of its queues, and asks for it again. It is strict: who waits,
// polls, or follows what is outside meanwhile, and who ends it before all of its queues have met,
// is told by a Bug.
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

/// A point in a queue's work; before it is recorded, nobody waits for it.
class Event {
 public:
  void synchronize() const;

 private:
  friend class Queue;
  Queue* queue_ = nullptr;
  int64_t until_ = 0;
};

/// What was asked of queues that follow each other, call by call.
struct Script final : Recording {
  struct Place {
    Queue* queue = nullptr;
    int64_t asked = 0;  ///< of it, before
    Mark now = 0;       ///< in the replay under way
  };
  Queue* first = nullptr;
  std::vector<std::function<void()>> calls;  ///< asks again
  std::map<Mark, Place> marks;
  std::map<Queue*, int64_t> asked;   ///< of each queue
  std::map<Queue*, int64_t> joined;  ///< of another, which the first follows
};

/// A planted refusal, of all recordings from now on: call number `call` (from 0)
/// throws Failure, and without so many the end gives no recording; -1: none.
void refuse_recordings(int64_t call);

class Queue : public espalier::Queue {
 public:
  explicit Queue(Order order = Order::ascending) : order_(order) {}

  void synchronize() override;
  void copy(void* to, const void* from, size_t bytes) override;
  Mark mark() override;
  bool passed(Mark mark) override;
  void wait(Mark mark) override;
  std::unique_ptr<espalier::Queue> beside() override;
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

  /// The device's copy of what the host never changes.
  const void* constant(const void* host, size_t bytes);

  Order order() const { return order_; }
  /// Tasks that were asked for and are not done.
  int64_t waiting() const { return asked_ - done_; }
  /// Kernels, copies and fills that were asked for.
  int64_t asked() const { return asked_; }
  /// The same, but that a replay counts as one.
  int64_t calls() const { return calls_; }
  int64_t replays() const { return replays_; }
  /// Of kernels alone, in order, those of recordings once.
  const std::vector<Grid>& launches() const { return launches_; }
  /// How often the host waited for all of it, and for marks that had not passed.
  int64_t synchronized() const { return synchronized_; }
  int64_t waited() const { return waited_; }
  /// The last task, counted as those of `asked`, that the host has waited for, done or not.
  int64_t waited_until() const { return waited_until_; }

  void enqueue(std::function<void()> task);
  /// A task that says whether it is done; until then nothing behind it begins.
  void enqueue_until(std::function<bool()> task);
  /// Does what can be done of the first `count` tasks; whether all are.
  bool advance(int64_t count);
  /// The same with waiting.
  void run_until(int64_t count);

 protected:
  Queue(const Queue& first, Order order) : espalier::Queue(&first), order_(order) {}
  bool recording() const { return script_ != nullptr; }
  /// For a replay.
  void keep(std::function<void()> call);

 private:
  void follow_recorded(Queue& other, Mark mark);
  /// Around work that is done.
  virtual void begin_work() {}
  virtual void end_work() noexcept {}

  Order order_;
  std::deque<std::function<bool()>> tasks_;
  std::vector<Grid> launches_;
  std::map<const void*, std::unique_ptr<std::byte[]>> constants_;
  int64_t asked_ = 0, done_ = 0, synchronized_ = 0, waited_ = 0, waited_until_ = 0;
  int64_t polls_ = 0, calls_ = 0, replays_ = 0;
  std::unique_ptr<Script> kept_;  ///< of a recording that it has begun
  Script* script_ = nullptr;      ///< while its calls are kept
  Script* replayed_ = nullptr;    ///< while it asks again
  bool at_work_ = false;          ///< a task runs: it may meet an event of its own queue
};

}  // namespace espalier::simt
