#pragma once
// A device as one rank uses it: its memory, which the host cannot read; memory of the host that
// both can; and queues of work, each done in the order in which it was asked for. Calls of a queue
// return before their work is done. What two queues do has no order, but for that of marks:
// `follow`. Backends bring devices (kernels.h, `open`); without one all memory is the host's, and
// kernels run when they are called.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/core/memory_source.h"

namespace espalier {

/// A point in a queue's work: everything asked for before it was set. Marks of a queue only grow.
using Mark = int64_t;

/// Work that was asked for once, to be done again as it was: the same calls with the same addresses
/// and numbers. It belongs to one queue.
class Recording {
 public:
  Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  virtual ~Recording() = default;
};

/// A backend knows its own kind.
class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;
  /// Returns when everything asked for is done; throws what went wrong on the way.
  virtual void synchronize() = 0;
  /// Between memory of the device and pinned memory, in any direction. Other memory of the host may
  /// be read or written as soon as the call is made, or as late as `synchronize`.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual Mark mark() = 0;
  virtual bool passed(Mark mark) = 0;  ///< without waiting
  virtual void wait(Mark mark) = 0;

  /// One more queue of the same device, which must not outlive this one. The two know no order but
  /// that of `follow`.
  virtual std::unique_ptr<Queue> beside() = 0;
  /// What is asked for from now on begins when `other`, of the same device, has passed `mark`. The
  /// host does not wait.
  virtual void follow(Queue& other, Mark mark) = 0;
  /// Until `end_recording` calls are kept instead of done, those of queues that follow this one
  /// too; it must follow them again before the end. Meanwhile nobody may wait, and no memory of the
  /// device is taken or given back. False: it cannot.
  virtual bool begin_recording() { return false; }
  /// Null: what was asked for cannot be kept, and nothing was done.
  virtual std::unique_ptr<Recording> end_recording() { return nullptr; }
  /// Asks for all of it, in one call.
  virtual void replay(Recording&) {}

  /// What the device's own libraries know it by (a cudaStream_t). The device becomes the calling
  /// thread's.
  virtual void* handle() = 0;
  /// Tells its device from all others, those of other machines too.
  virtual std::string device_id() const = 0;

  /// While the host waits for any queue of the device this is called again and again. It may throw
  /// what makes waiting useless, when it has ended the work that would not end by itself.
  void set_lookout(std::function<void()> lookout) { *lookout_ = std::move(lookout); }

 protected:
  explicit Queue(const Queue* first) : lookout_(first->lookout_) {}  ///< of one beside another
  bool has_lookout() const { return static_cast<bool>(*lookout_); }
  void look() const {
    if (*lookout_) {
      (*lookout_)();
    }
  }

 private:
  std::shared_ptr<std::function<void()>> lookout_ = std::make_shared<std::function<void()>>();
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;
  virtual MemorySource& memory() = 0;
  virtual MemorySource& pinned() = 0;
  /// The first one. New memory is zeroed in its order, before whatever others are asked for later.
  virtual Queue& queue() = 0;
};

}  // namespace espalier
