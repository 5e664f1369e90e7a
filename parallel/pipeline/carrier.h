#pragma once
// Moves the messages of a channel (one direction between two ranks). A carrier owns the ring of
// buffers of its end, from the arena.
//
//   host   host memory, the envelope behind the content: one message of the communicator
//   mpi    device memory that the communicator reads and writes itself (CUDA-aware MPI); the
//          envelope is a message of its own
//   nccl   device memory, by NCCL (nccl_carrier.h)
//
// Bytes of contents count as point-to-point traffic, those of envelopes as other.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/transport/communicator.h"
#include "src/core/arena.h"

namespace espalier::parallel {

enum class CarrierKind : uint8_t { host, mpi, nccl };
std::string_view name_of(CarrierKind carrier);

/// Identifies a message. `stage` is the receiving one.
struct Envelope {
  uint32_t run = 0;  ///< counts the runs of the pipeline, evaluations too
  uint32_t micro_batch = 0;
  uint16_t stage = 0;
  uint16_t gradient = 0;  ///< 1: gradient, 0: activation
  uint32_t magic = 0x45535050;
  bool operator==(const Envelope&) const = default;
};
static_assert(sizeof(Envelope) == 16);
std::string describe(const Envelope& envelope);

/// Bytes of a buffer for a message of `bytes`: with its envelope, on cache lines of its own.
constexpr size_t buffer_bytes(size_t bytes) { return (bytes + sizeof(Envelope) + 63) / 64 * 64; }

struct ChannelShape {
  int peer = 0;      ///< rank at the other end
  int number = 0;    ///< of the tag
  size_t bytes = 0;  ///< of a message, without envelope
  int buffers = 1;
  bool sends = false;  ///< else it receives
};

/// `buffers` buffers for messages of `bytes`, in one allocation of ring_bytes.
constexpr size_t ring_bytes(size_t bytes, int buffers) {
  return buffer_bytes(bytes) * static_cast<size_t>(buffers);
}
Buffer make_ring(Arena& arena, std::string_view name, size_t bytes, int buffers);
std::span<std::byte> ring_part(const Buffer& ring, size_t slot, size_t bytes);

class Carrier {
 public:
  /// Both must outlive it.
  Carrier(Communicator& comm, Arena& arena, const ChannelShape& shape);
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;
  virtual ~Carrier() = default;

  const ChannelShape& shape() const { return shape_; }
  size_t slots() const { return static_cast<size_t>(shape_.buffers); }
  size_t slot_of(int64_t number) const { return static_cast<size_t>(number) % slots(); }
  std::span<std::byte> content(size_t slot) const;

  // Receiving; messages arrive in the order in which their buffers were posted.

  /// Posts a receive into this buffer, which has no readers left.
  virtual void post(size_t slot) = 0;
  /// Whether the message is here, or will be for kernels enqueued after `accept`. Progresses the
  /// transport. Called for the oldest buffer that has no message yet.
  virtual bool arrived(size_t slot) = 0;
  /// Whether `arrived` has to be polled for messages in transit to progress.
  virtual bool needs_polling() const { return false; }
  /// Takes a message that arrived. Throws Failure when its envelope is not `expected`.
  void accept(size_t slot, const Envelope& expected);

  // Sending.

  /// Whether the next send may start now.
  virtual bool can_send() { return true; }
  /// Starts the send of this buffer, whose content is complete.
  virtual void send(size_t slot, const Envelope& envelope) = 0;
  /// Whether the send is complete, so that the buffer may be reused. Progresses the transport.
  virtual bool sent(size_t slot) = 0;

 protected:
  Communicator& comm() { return comm_; }
  std::span<std::byte> whole(size_t slot) const;
  virtual Envelope envelope(size_t slot) const = 0;
  /// Orders the compute stream after the transfer of a message.
  virtual void follow_transfer(size_t) {}

 private:
  Communicator& comm_;
  ChannelShape shape_;
  Buffer ring_;
};

class HostCarrier final : public Carrier {
 public:
  HostCarrier(Communicator& comm, Arena& arena, const ChannelShape& shape);
  void post(size_t slot) override;
  bool arrived(size_t slot) override { return comm().test(requests_[slot]); }
  void send(size_t slot, const Envelope& envelope) override;
  bool sent(size_t slot) override { return comm().test(requests_[slot]); }

 private:
  Envelope envelope(size_t slot) const override;

  std::vector<Request> requests_;
};

/// Envelopes as messages of their own.
class Envelopes {
 public:
  static constexpr int kFirstNumber = 16;  ///< of tags, behind those of collectives

  Envelopes(Communicator& comm, const ChannelShape& shape);
  void post(size_t slot);
  void send(size_t slot, const Envelope& envelope);
  bool done(size_t slot) { return comm_.test(requests_[slot]); }
  const Envelope& operator[](size_t slot) const { return envelopes_[slot]; }

 private:
  Communicator& comm_;
  int peer_;
  Tag tag_;
  std::vector<Envelope> envelopes_;
  std::vector<Request> requests_;
};

class MpiCarrier final : public Carrier {
 public:
  MpiCarrier(Communicator& comm, Arena& arena, const ChannelShape& shape);
  void post(size_t slot) override;
  bool arrived(size_t slot) override { return done(slot); }
  void send(size_t slot, const Envelope& envelope) override;
  bool sent(size_t slot) override { return done(slot); }

 private:
  Envelope envelope(size_t slot) const override { return envelopes_[slot]; }
  bool done(size_t slot) { return envelopes_.done(slot) && comm().test(requests_[slot]); }

  Envelopes envelopes_;
  std::vector<Request> requests_;
};

}  // namespace espalier::parallel
