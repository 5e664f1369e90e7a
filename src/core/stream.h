#pragma once
// A stream: where kernels run. On the CPU it is a number of threads and a growing workspace; calls
// are synchronous. On a device it has a queue as well: calls return before their work is done, work
// is done in the order of the calls, and `synchronize` waits for it. One stream belongs to one rank
// and is used by one thread at a time.
#include "src/core/arena.h"

namespace espalier {

/// The work of a device, in the order in which it was asked for. A backend knows its own kind.
class Queue {
 public:
  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  virtual ~Queue() = default;
  /// Returns when everything asked for is done; throws what went wrong on the way.
  virtual void synchronize() = 0;
};

class Stream {
 public:
  /// `queue` (of a device; the CPU has none) must outlive the stream.
  Stream(Arena& arena, int threads, Queue* queue = nullptr)
      : arena_(arena), threads_(threads), queue_(queue) {}
  /// The workspace is given back when nothing uses it any more.
  ~Stream() {
    try {
      synchronize();
    } catch (const Error&) {  // whoever needs results synchronizes, and was told
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int threads() const { return threads_; }
  Arena& arena() { return arena_; }
  Queue* queue() { return queue_; }

  /// Waits until every call so far is done: only then may the host look at results.
  void synchronize() {
    if (queue_ != nullptr) {
      queue_->synchronize();
    }
  }

  /// At least `bytes` of 64-byte aligned memory, valid until the next call; contents undefined.
  /// Kernels use it within one call and never nest. On a device it is valid until the next call is
  /// asked for: what uses it comes before, in order; growing waits for that.
  std::byte* workspace(size_t bytes) {
    if (bytes > workspace_.tensor().bytes() || !workspace_.tensor()) {
      synchronize();
      workspace_.release();
      workspace_ = arena_.allocate(Memory::scratch, "workspace", DType::uint8,
                                   Shape{static_cast<int64_t>(bytes)});
    }
    return static_cast<std::byte*>(workspace_.tensor().data);
  }

 private:
  Arena& arena_;
  int threads_;
  Queue* queue_;
  Buffer workspace_;
};

}  // namespace espalier
