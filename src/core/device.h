#pragma once
// A device as one rank uses it:
//   - device memory, which the host cannot read
//   - pinned host memory, which both access
//   - queues; each runs its calls in order
//
// Calls of a queue are asynchronous: they enqueue work and return. Only `follow` orders work
// between two queues. Backends open devices (kernels.h, `open`). Without a device all memory is the
// host's, and kernels run synchronously.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/core/memory_source.h"

namespace espalier {

/// A position in a queue: all work enqueued before it (on CUDA, an event). Marks of a queue only
/// grow.
using Mark = int64_t;

/// Captured work, for replay: the same calls with the same addresses and scalars. It belongs to one
/// queue.
class Recording {
 public:
  Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  virtual ~Recording() = default;
};

/// A point of time in a queue: when all work enqueued before it was done.
class TimePoint {
 public:
  virtual ~TimePoint() = default;
  /// Waits until the queue has passed this point. `earlier`: of the same queue.
  virtual double seconds_since(const TimePoint& earlier) const = 0;
};

/// Interface of a queue; each backend implements its own.
class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;
  /// Waits until all enqueued work is done; throws the error of failed work.
  virtual void synchronize() = 0;
  /// Copies between device memory and pinned memory, in any direction. Pageable host memory may be
  /// accessed at any time between the call and the next `synchronize`.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual Mark mark() = 0;
  virtual bool passed(Mark mark) = 0;  ///< does not wait
  virtual void wait(Mark mark) = 0;

  /// Creates another queue of the same device; it must not outlive this one. Only `follow` orders
  /// the two.
  virtual std::unique_ptr<Queue> make_queue() = 0;
  /// Work enqueued from now on starts after `other`, a queue of the same device, has passed `mark`.
  /// The host does not wait.
  virtual void follow(Queue& other, Mark mark) = 0;
  /// Captures calls instead of running them, until `end_recording`. Calls of queues that follow
  /// this one are captured too; this queue must follow them again before the end. During capture no
  /// thread waits, and device memory is neither allocated nor freed. False: capture is not
  /// supported.
  virtual bool begin_recording() { return false; }
  /// Null: the calls cannot be captured, and none has run.
  virtual std::unique_ptr<Recording> end_recording() { return nullptr; }
  /// Launches all captured calls at once.
  virtual void replay(Recording&) {}

  /// Not while calls are captured. By default the host waits for the queue and reads its own clock.
  virtual std::unique_ptr<TimePoint> time_point();

  /// Native handle for the device's libraries (a cudaStream_t). Makes the device current on the
  /// calling thread.
  virtual void* handle() = 0;
  /// Identifies the device uniquely, also across machines.
  virtual std::string device_id() const = 0;

  /// Callback that runs repeatedly while the host waits for any queue of the device. It may throw
  /// to abort the wait, after it has aborted work that would never finish.
  void set_wait_hook(std::function<void()> hook) { *wait_hook_ = std::move(hook); }

 protected:
  explicit Queue(const Queue* first) : wait_hook_(first->wait_hook_) {}  ///< of `beside`
  bool has_wait_hook() const { return static_cast<bool>(*wait_hook_); }
  void run_wait_hook() const {
    if (*wait_hook_) {
      (*wait_hook_)();
    }
  }

 private:
  std::shared_ptr<std::function<void()>> wait_hook_ = std::make_shared<std::function<void()>>();
};

/// Of `queue`, or of the host if it is null.
std::unique_ptr<TimePoint> time_point(Queue* queue);

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;
  virtual MemorySource& memory() = 0;
  virtual MemorySource& pinned() = 0;
  /// The first queue. New memory is zeroed on it, before any work that other queues enqueue later.
  virtual Queue& queue() = 0;
};

}  // namespace espalier
