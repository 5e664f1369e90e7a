#pragma once
// Ordered point-to-point messages between neighbouring pipeline stages: fixed size, a ring of
// buffers on each side. A Carrier (carrier.h) moves the bytes: MPI, NCCL or host staging.
//
//   Inbox     posts a receive for every free buffer; `content` returns the oldest message
//   Outbox    a buffer is filled and sent; when the ring is full, `free` is false
//   LocalBox  both ends on one rank: no copy, no send
//
// Every message carries an Envelope (run, micro-batch, stage, direction). A message that does not
// match the expected envelope (late, duplicated, reordered) throws Failure naming both.
//
// Device ordering: a send starts after the event recorded behind the kernels that fill its buffer;
// a buffer is reused after the event behind its readers. No call waits: `advance` polls, and the
// runner calls it between actions. By host and MPI, receives are posted for all buffers at once. By
// NCCL a content's receive follows its envelope, so no queue waits for a send that waits for it.
#include <deque>
#include <memory>
#include <span>

#include "parallel/pipeline/carrier.h"
#include "src/core/stream.h"

namespace espalier::parallel {

class Inbox {
 public:
  /// `stream`, on which messages are read, must outlive it.
  Inbox(Stream& stream, std::unique_ptr<Carrier> carrier);
  /// Whether the next message is here. Progresses the transport.
  bool arrived();
  /// The next message, which must have arrived, for kernels that are enqueued after this call.
  /// Throws Failure when its envelope is not `expected`.
  std::span<const std::byte> content(const Envelope& expected);
  /// The message has been read when `read` has passed; then its buffer is posted again.
  void release(Mark read);
  void advance();
  int peer() const { return carrier_->shape().peer; }

 private:
  size_t slot_of(int64_t number) const { return carrier_->slot_of(number); }
  void post_receives();
  void poll();

  Stream& stream_;
  std::unique_ptr<Carrier> carrier_;
  int64_t read_ = 0;           ///< messages
  int64_t arrived_ = 0;        ///< or known to be in transit
  int64_t expected_ = 0;       ///< receives posted
  std::deque<Mark> released_;  ///< buffers that kernels may still read
};

class Outbox {
 public:
  /// `stream`, on which messages are filled, must outlive it.
  Outbox(Stream& stream, std::unique_ptr<Carrier> carrier);
  /// Whether there is a buffer to fill. Progresses the transport.
  bool free();
  /// The buffer, which must be free.
  std::span<std::byte> content() const;
  /// The buffer is filled when `filled` has passed; then its send starts.
  void send(const Envelope& envelope, Mark filled);
  void advance();
  /// Progresses sends; true when all are complete.
  bool flushed();
  int peer() const { return carrier_->shape().peer; }

 private:
  struct Waiting {
    Envelope envelope;
    Mark filled = 0;
  };

  Stream& stream_;
  std::unique_ptr<Carrier> carrier_;
  int64_t sent_ = 0;             ///< messages, including those in `waiting_`
  std::deque<Waiting> waiting_;  ///< sends not started yet: kernels may still fill the buffer
};

class LocalBox {
 public:
  LocalBox(Arena& arena, size_t bytes, int buffers);
  /// The next buffer to fill.
  std::span<std::byte> push();
  /// The oldest filled one.
  std::span<const std::byte> front() const;
  void pop() { ++taken_; }

 private:
  std::span<std::byte> buffer(int64_t number) const;
  size_t bytes_;
  int buffers_;
  Buffer memory_;
  int64_t filled_ = 0, taken_ = 0;
};

}  // namespace espalier::parallel
