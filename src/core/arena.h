#pragma once
// The arena: the only owner of bulk memory, and the source of all reported memory figures.
//
// Each allocation has a category and a name; the arena keeps bytes in use and the high-water mark
// by category.
//   memory   zeroed, 64-byte aligned, returned when its Buffer is destroyed
//   limit    an allocation beyond it throws Failure, which lists the bytes in use by category
//   dry      addresses are distinct and must never be read: the same code then measures the memory
//            of a run without allocating it
//
// An arena of a device has a second one, `host()`, for memory that the host reads or writes.
// Without a device `host()` is the arena itself.
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "src/core/memory_source.h"
#include "src/core/tensor.h"

namespace espalier {

/// Category of an allocation. Model state = weight + gradient + master + moment + index.
enum class Memory : uint8_t {
  weight,      ///< values that compute reads
  gradient,    ///< flat gradient over kept elements
  master,      ///< fp32 copy that the optimizer updates
  moment,      ///< optimizer moments
  index,       ///< positions of kept elements
  activation,  ///< tapes and layer inputs
  scratch,     ///< workspace that lives within one call
  communication,
};
inline constexpr int kMemoryKinds = 8;
std::string_view name_of(Memory kind);

class Arena;

/// Owns one allocation; moves, never copies. The arena must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  const Tensor& tensor() const { return tensor_; }
  size_t bytes() const { return tensor_ ? tensor_.bytes() : 0; }
  void release() noexcept;

 private:
  friend class Arena;
  void swap(Buffer& other) noexcept;
  Arena* arena_ = nullptr;
  Memory kind_ = Memory::scratch;
  Tensor tensor_;
};

struct MemoryUse {
  size_t now = 0;   ///< bytes
  size_t peak = 0;  ///< bytes, of this category alone
};

class Arena {
 public:
  /// `dry`: only counts; no memory is behind the addresses.
  explicit Arena(bool dry = false) : source_(dry ? nullptr : &host_memory()) {}
  /// Allocates host-readable memory from `source`.
  explicit Arena(MemorySource& source) : source_(&source) {}
  /// Device arena; `host` is its host arena and must outlive it. Null `source`: dry.
  Arena(Arena& host, MemorySource* source) : source_(source), host_(&host) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Zeroed memory. When memory is exhausted or the limit would be exceeded, throws Failure with
  /// the request and the bytes in use.
  Buffer allocate(Memory kind, std::string_view name, DType dtype, const Shape& shape);

  /// Limit on bytes in use, from now on; 0: none.
  void set_limit(size_t bytes) { limit_ = bytes; }
  /// Advice that a Failure prints in place of the general hint.
  void set_advice(std::string text) { advice_ = std::move(text); }
  /// Bytes still free in the memory source; SIZE_MAX if unknown.
  size_t available() const { return dry() ? SIZE_MAX : source_->available(); }

  bool dry() const { return source_ == nullptr; }
  bool on_device() const { return host_ != nullptr; }
  Arena& host() { return host_ != nullptr ? *host_ : *this; }
  /// An empty arena on the same memory source, for a trial.
  Arena another() const {
    return on_device() ? Arena(*host_, source_) : dry() ? Arena(true) : Arena(*source_);
  }
  MemoryUse use(Memory kind) const;
  /// Bytes in use over all categories, and the high-water mark of their sum.
  MemoryUse total() const;
  /// Bytes of a category at the time of the total's peak.
  size_t at_peak(Memory kind) const;
  /// Plans call it for heap memory that code holds for a while, beside `in_use` bytes of the arena.
  void note_heap(size_t bytes, size_t in_use);
  void note_heap(size_t bytes) { note_heap(bytes, total().now); }
  /// High-water mark of arena and noted heap.
  size_t peak_with_heap() const;
  /// weight + gradient + master + moment + index, now.
  size_t model_state_bytes() const;
  /// model_state_bytes of the host arena of a device; 0 without a device.
  size_t offloaded_bytes() const { return on_device() ? host_->model_state_bytes() : 0; }

 private:
  friend class Buffer;
  void give_back(Memory kind, void* data, size_t bytes) noexcept;
  std::string in_use() const;
  void count(Memory kind, std::string_view name, size_t bytes);
  void uncount(Memory kind, size_t bytes) noexcept;

  MemorySource* source_;  ///< null: dry
  Arena* host_ = nullptr;
  size_t limit_ = 0;
  std::string advice_;
  size_t next_dry_address_ = 64;
  mutable std::mutex mutex_;
  std::array<MemoryUse, kMemoryKinds> use_{};
  MemoryUse total_;
  std::array<size_t, kMemoryKinds> at_peak_{};
  size_t peak_with_heap_ = 0;  ///< of the calls of `note_heap`
};

}  // namespace espalier
