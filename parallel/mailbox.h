#pragma once
// What lies between a stage of a pipeline and its neighbours: ordered messages of one size, in a
// ring of buffers from the arena.
//
//   Inbox      receives are posted for all its buffers, early; a buffer is posted again when released
//   Outbox     a buffer is claimed, filled, sent without waiting; claiming waits for the oldest send
//   LocalBox   the same between two stages of one rank: nothing is copied or sent
//
// Each message ends with an envelope that says what it is. What arrives is compared with what is
// expected, so a message out of order, late from an earlier step, or doubled is an error that names
// both, and never taken for another.
#include <deque>
#include <span>

#include "parallel/communicator.h"
#include "parallel/schedule/schedule.h"
#include "src/core/arena.h"

namespace espalier::parallel {

/// What a message is. `stage` is the receiving one.
struct Envelope {
  uint32_t run = 0;  ///< counts the runs of the pipeline, evaluations too
  uint32_t micro_batch = 0;
  uint16_t stage = 0;
  uint16_t gradient = 0;  ///< 1: gradient, 0: activation
  uint32_t mark = 0x45535050;
  bool operator==(const Envelope&) const = default;
};
static_assert(sizeof(Envelope) == 16);
std::string describe(const Envelope& envelope);

/// What a buffer for a message of `bytes` takes: with its envelope, on cache lines of its own.
constexpr size_t buffer_bytes(size_t bytes) { return (bytes + sizeof(Envelope) + 63) / 64 * 64; }

struct ChannelShape {
  int peer = 0;      ///< rank at the other end
  int number = 0;    ///< of the tag
  size_t bytes = 0;  ///< of a message, without envelope
  int buffers = 1;
};

/// Buffers used in turn, each with the message that occupies it.
class Ring {
 public:
  Ring(Arena& arena, std::string_view name, const ChannelShape& shape);
  size_t slots() const { return requests_.size(); }
  /// The one in turn.
  size_t slot() const { return static_cast<size_t>(next_) % slots(); }
  void advance() { ++next_; }
  Request& request(size_t slot) { return requests_[slot]; }
  /// Message and envelope.
  std::span<std::byte> buffer(size_t slot) const;

 private:
  size_t bytes_;
  Buffer memory_;
  std::vector<Request> requests_;
  int64_t next_ = 0;
};

class Inbox {
 public:
  Inbox(Communicator& comm, Arena& arena, const ChannelShape& shape);
  /// Whether the next message is here. Drives the transport.
  bool arrived();
  /// The next message, which must have arrived. Throws Failure when it is another than `expected`.
  std::span<const std::byte> content(const Envelope& expected) const;
  /// It has been read; its buffer receives again.
  void release();
  int peer() const { return shape_.peer; }

 private:
  void post(size_t slot);

  Communicator& comm_;
  ChannelShape shape_;
  Ring ring_;
};

class Outbox {
 public:
  Outbox(Communicator& comm, Arena& arena, const ChannelShape& shape);
  /// Whether there is a buffer to fill. Drives the transport.
  bool free();
  /// The buffer, which must be free.
  std::span<std::byte> content() const;
  void send(const Envelope& envelope);
  /// Drives what is under way; true when nothing is.
  bool flushed();
  int peer() const { return shape_.peer; }

 private:
  Communicator& comm_;
  ChannelShape shape_;
  Ring ring_;
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
