#pragma once
// Memory of an arena: the host's heap, a backend's device memory, or pinned host memory, which a
// device reads and writes directly.
#include <cstddef>
#include <limits>

namespace espalier {

class MemorySource {
 public:
  MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;
  virtual ~MemorySource() = default;
  /// Zeroed, 64-byte aligned; null if memory is exhausted.
  virtual void* allocate(size_t bytes) = 0;
  /// First waits for all work enqueued on the device.
  virtual void free(void* data, size_t bytes) noexcept = 0;
  /// Free bytes now; the largest number if unknown.
  virtual size_t available() { return std::numeric_limits<size_t>::max(); }
};

/// The heap.
MemorySource& host_memory();

}  // namespace espalier
