#pragma once
// The arena: the only owner of bulk memory, and the witness of every byte claim.
//
// Each allocation has a category and a name; the arena keeps bytes in use and the high-water mark
// by category. Memory is zeroed, 64-byte aligned, and returned when its Buffer dies. With a limit,
// an allocation beyond it is a Failure that says what is in use, long before the system ends the
// program. A dry arena hands out addresses that must never be read: the same code then prints what
// a run would need.
//
// An arena of a device has another one beside it, `host()`, for what the host reads or writes
// there; without a device that is the arena itself, and the same code takes its memory once.
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "src/core/memory_source.h"
#include "src/core/tensor.h"

namespace espalier {

/// What the memory is for. Model state = weight + gradient + master + moment + index.
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
  /// `dry`: count only, no memory behind the addresses.
  explicit Arena(bool dry = false) : source_(dry ? nullptr : &host_memory()) {}
  /// Of memory that the host can read.
  explicit Arena(MemorySource& source) : source_(&source) {}
  /// Of a device, beside `host`, which must outlive it. Without `source` dry.
  Arena(Arena& host, MemorySource* source) : source_(source), host_(&host) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Zeroed memory. Throws Failure with what was asked for and what is in use when there is none,
  /// or when the limit would be passed.
  Buffer allocate(Memory kind, std::string_view name, DType dtype, const Shape& shape);

  /// Most bytes in use at once from now on; 0: no limit.
  void set_limit(size_t bytes) { limit_ = bytes; }
  /// What a failure tells the user to do, instead of a general hint.
  void set_advice(std::string text) { advice_ = std::move(text); }
  /// Bytes that its source has left, where that is known.
  size_t available() const { return dry() ? SIZE_MAX : source_->available(); }

  bool dry() const { return source_ == nullptr; }
  bool on_device() const { return host_ != nullptr; }
  Arena& host() { return host_ != nullptr ? *host_ : *this; }
  /// An empty one of the same memory, for a trial.
  Arena another() const {
    return on_device() ? Arena(*host_, source_) : dry() ? Arena(true) : Arena(*source_);
  }
  MemoryUse use(Memory kind) const;
  /// Bytes in use over all categories, and the high-water mark of their sum.
  MemoryUse total() const;
  /// What a category held when the sum of all was largest.
  size_t at_peak(Memory kind) const;
  /// weight + gradient + master + moment + index, now.
  size_t model_state_bytes() const;
  /// The same of the host beside a device.
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
};

}  // namespace espalier
