#pragma once
// What lies between a stage of a pipeline and its neighbours: ordered messages of one size, in a
// ring of buffers. How they get there is a carrier's (carrier.h).
//
//   Inbox      all its buffers take messages from the beginning; one that was read takes another
//   Outbox     a buffer is claimed, filled and sent; claiming waits for the oldest send
//   LocalBox   the same between two stages of one rank: nothing is copied or sent
//
// Each message has an envelope that says what it is. What arrives is compared with what is
// expected, so a message out of order, late from an earlier step, or doubled is an error that names
// both, and never taken for another.
//
// On a device a message leaves when the kernels that fill it have passed, and a buffer takes
// another when those that read it have. Nobody waits for either: whoever drives a pipeline looks
// again and again (`advance`). So what was sent is under way, and a receive is asked for after its
// send: by that order in time no queue can wait for a message of a queue that waits for it.
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
  /// Whether the next message is here. Drives the transport.
  bool arrived();
  /// The next message, which must have arrived, for kernels that are asked for from now on. Throws
  /// Failure when it is another than `expected`.
  std::span<const std::byte> content(const Envelope& expected);
  /// It has been read when `read` has passed; then its buffer takes another.
  void release(Mark read);
  void advance();
  int peer() const { return carrier_->shape().peer; }

 private:
  size_t slot_of(int64_t number) const { return carrier_->slot_of(number); }
  void expect_more();
  void look();

  Stream& stream_;
  std::unique_ptr<Carrier> carrier_;
  int64_t read_ = 0;           ///< messages
  int64_t arrived_ = 0;        ///< or known to be under way
  int64_t expected_ = 0;       ///< that have a buffer
  std::deque<Mark> released_;  ///< buffers that kernels may still use
};

class Outbox {
 public:
  /// `stream`, on which messages are filled, must outlive it.
  Outbox(Stream& stream, std::unique_ptr<Carrier> carrier);
  /// Whether there is a buffer to fill. Drives the transport.
  bool free();
  /// The buffer, which must be free.
  std::span<std::byte> content() const;
  /// It has been filled when `filled` has passed; then it leaves.
  void send(const Envelope& envelope, Mark filled);
  void advance();
  /// Drives what is under way; true when nothing is.
  bool flushed();
  int peer() const { return carrier_->shape().peer; }

 private:
  struct Waiting {
    Envelope envelope;
    Mark filled = 0;
  };

  Stream& stream_;
  std::unique_ptr<Carrier> carrier_;
  int64_t sent_ = 0;             ///< messages, those that wait for kernels included
  std::deque<Waiting> waiting_;  ///< the last ones
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
