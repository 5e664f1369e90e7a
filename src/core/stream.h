#pragma once
// A stream runs kernels.
//   CPU      a number of threads and a growing workspace; calls are synchronous
//   device   also a queue: calls are asynchronous and run in order; `synchronize` waits for them
//
// One stream belongs to one rank and is used by one thread at a time. A device may have a second
// stream, `side`, for work that overlaps with this one; `follow` orders the two.
#include "src/core/arena.h"
#include "src/core/device.h"

namespace espalier {

class Stream {
 public:
  /// `queue` and `side` (null on the CPU) must outlive the stream.
  Stream(Arena& arena, int threads, Queue* queue = nullptr, Queue* side = nullptr);
  /// Synchronizes, then frees the workspace.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int threads() const { return threads_; }
  Arena& arena() { return arena_; }
  Queue* queue() { return queue_; }

  /// Waits for all calls so far; only then may the host read results.
  void synchronize() {
    if (queue_ != nullptr) {
      queue_->synchronize();
    }
  }
  /// Marks all work enqueued so far. Without a queue a mark has always passed.
  Mark mark() { return queue_ != nullptr ? queue_->mark() : Mark{}; }
  bool passed(Mark mark) { return queue_ == nullptr || queue_->passed(mark); }
  void wait(Mark mark) {
    if (queue_ != nullptr) {
      queue_->wait(mark);
    }
  }
  /// Work enqueued from now on starts after `mark` of `other` has passed; see Queue.
  void follow(Stream& other, Mark mark) {
    if (queue_ != nullptr) {
      queue_->follow(*other.queue_, mark);
    }
  }
  /// Copies the bytes of a tensor, in order with kernels; does nothing if both are the same memory.
  /// Host memory must be pinned, or stay untouched until the next `synchronize`.
  void copy(const Tensor& from, const Tensor& to);

  /// Allows dense products and convolutions to round fp32 operands to TF32 (10 bits of mantissa),
  /// which tensor cores multiply many times faster. No effect on the CPU.
  void allow_tf32(bool allow) { tf32_ = allow; }
  bool tf32() const { return tf32_; }
  /// Requires results with the same bits each time; the default. If false, device kernels may add
  /// in any order and choose algorithms by timing. Results on the CPU always repeat.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }
  bool deterministic() const { return deterministic_; }

  /// Stream for CPU work next to a device, with pinned memory. Without a device, this stream.
  Stream& host() { return host_ ? *host_ : *this; }
  /// Null if nothing can overlap.
  Stream* side() { return side_.get(); }

  /// At least `bytes` of 64-byte aligned memory; contents undefined. Valid within one kernel call;
  /// calls never nest. On a device, later calls may reuse it because the queue runs in order;
  /// growing synchronizes first.
  std::byte* workspace(size_t bytes);

 private:
  Arena& arena_;
  int threads_;
  Queue* queue_;
  bool tf32_ = false;
  bool deterministic_ = true;
  std::unique_ptr<Stream> host_, side_;
  Buffer workspace_;
};

}  // namespace espalier
