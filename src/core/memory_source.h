#pragma once
// Where an arena's memory comes from: the host's heap, or what a backend brings, memory of a device
// and memory of the host that a device reads and writes by itself ("pinned").
#include <cstddef>
#include <limits>

namespace espalier {

class MemorySource {
 public:
  MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;
  virtual ~MemorySource() = default;
  /// Zeroed, 64-byte aligned; null where there is no more.
  virtual void* allocate(size_t bytes) = 0;
  /// What all queues of a device were asked for so far is done first.
  virtual void free(void* data, size_t bytes) noexcept = 0;
  /// Bytes that are free now; the largest number where nobody knows.
  virtual size_t available() { return std::numeric_limits<size_t>::max(); }
};

/// The heap.
MemorySource& host_memory();

}  // namespace espalier
