#pragma once
// A device as one rank uses it: its memory, which the host cannot read; memory of the host that both
// can; and a queue of work, done in the order in which it was asked for. Calls of a queue return
// before their work is done. Backends bring them (kernels.h, `open`); without one all memory is the
// host's, and kernels run when they are called.
#include <cstdint>
#include <memory>

#include "src/core/memory_source.h"

namespace espalier {

/// A point in a queue's work: everything asked for before it was set. Marks of a queue only grow.
using Mark = int64_t;

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
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;
  virtual MemorySource& memory() = 0;
  virtual MemorySource& pinned() = 0;
  virtual Queue& queue() = 0;
};

}  // namespace espalier
