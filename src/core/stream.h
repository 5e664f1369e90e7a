#pragma once
// A stream: where kernels run. On the CPU it is a number of threads and a growing workspace; calls
// are synchronous. On a device it has a queue as well: calls return before their work is done, work
// is done in the order of the calls, and `synchronize` waits for it. One stream belongs to one rank
// and is used by one thread at a time. Beside it a device may have a `side` stream, for work that
// overlaps with its own; `follow` orders the two.
#include "src/core/arena.h"
#include "src/core/device.h"

namespace espalier {

class Stream {
 public:
  /// `queue` and `side` (of a device; the CPU has none) must outlive the stream.
  Stream(Arena& arena, int threads, Queue* queue = nullptr, Queue* side = nullptr);
  /// The workspace is given back when nothing uses it any more.
  ~Stream();
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
  /// Everything asked for so far. Without a queue it has always passed.
  Mark mark() { return queue_ != nullptr ? queue_->mark() : Mark{}; }
  bool passed(Mark mark) { return queue_ == nullptr || queue_->passed(mark); }
  void wait(Mark mark) {
    if (queue_ != nullptr) {
      queue_->wait(mark);
    }
  }
  /// Calls from now on begin when `mark` of `other` has passed; see Queue.
  void follow(Stream& other, Mark mark) {
    if (queue_ != nullptr) {
      queue_->follow(*other.queue_, mark);
    }
  }
  /// The same bytes, in order with kernels; nothing where both are the same memory. Memory of the
  /// host has to be pinned, or to be left alone until the next `synchronize`.
  void copy(const Tensor& from, const Tensor& to);

  /// Whether dense products may round operands of fp32 to TF32, a mantissa of 10 bits, which tensor
  /// cores multiply many times faster. The CPU has no such products, and never does.
  void allow_tf32(bool allow) { tf32_ = allow; }
  bool tf32() const { return tf32_; }
  /// Whether results must have the same bits each time, which is so unless told otherwise. Else
  /// kernels of a device may add up in any order and choose algorithms by the clock. The CPU's
  /// results always repeat.
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }
  bool deterministic() const { return deterministic_; }

  /// For work of the CPU beside a device: its memory is pinned. Without a device this stream.
  Stream& host() { return host_ ? *host_ : *this; }
  /// Null where nothing can overlap.
  Stream* side() { return side_.get(); }

  /// At least `bytes` of 64-byte aligned memory, valid until the next call; contents undefined.
  /// Kernels use it within one call and never nest. On a device it is valid until the next call is
  /// asked for: what uses it comes before, in order; growing waits for that.
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
