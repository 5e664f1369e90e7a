#pragma once
// How the messages of a channel, one direction between two ranks, get from one to the other. A
// carrier holds the buffers of its end, from the arena.
//
//   host   memory of the host, the envelope behind the content: one message of the communicator
//   mpi    memory of a device, which the communicator reads and writes itself (CUDA-aware MPI);
//          the envelope is a message of its own
//   nccl   memory of a device, by NCCL (nccl_carrier.h)
//
// Bytes of contents are counted as point-to-point traffic, those of envelopes as other.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/transport/communicator.h"
#include "src/core/arena.h"

namespace espalier::parallel {

enum class Carriage : uint8_t { host, mpi, nccl };
std::string_view name_of(Carriage carriage);

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
  bool sends = false;  ///< else it receives
};

/// `shape.buffers` buffers in one allocation.
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

  // Receiving; messages come in the order in which their buffers were named.

  /// The next message belongs into this buffer, which nobody reads any more.
  virtual void expect(size_t slot) = 0;
  /// Whether it is here, or will be for kernels that are asked for after `open`. Drives the
  /// transport. Asked of the oldest that is not.
  virtual bool came(size_t slot) = 0;
  /// Whether `came` has to be asked as soon as a message may be under way, for it to go on.
  virtual bool answers() const { return false; }
  /// Of a message that came. Throws Failure when it is another than `expected`.
  void open(size_t slot, const Envelope& expected);

  // Sending.

  /// Whether the next message may leave now.
  virtual bool clear() { return true; }
  /// The content of this buffer is there, and leaves.
  virtual void leave(size_t slot, const Envelope& envelope) = 0;
  /// Whether the buffer may be used again. Drives the transport.
  virtual bool left(size_t slot) = 0;

 protected:
  Communicator& comm() { return comm_; }
  std::span<std::byte> whole(size_t slot) const;
  virtual Envelope envelope(size_t slot) const = 0;
  /// Makes kernels find it.
  virtual void let_in(size_t) {}

 private:
  Communicator& comm_;
  ChannelShape shape_;
  Buffer ring_;
};

class HostCarrier final : public Carrier {
 public:
  HostCarrier(Communicator& comm, Arena& arena, const ChannelShape& shape);
  void expect(size_t slot) override;
  bool came(size_t slot) override { return comm().test(requests_[slot]); }
  void leave(size_t slot, const Envelope& envelope) override;
  bool left(size_t slot) override { return comm().test(requests_[slot]); }

 private:
  Envelope envelope(size_t slot) const override;

  std::vector<Request> requests_;
};

/// Envelopes that travel by themselves.
class Envelopes {
 public:
  static constexpr int kFirstNumber = 16;  ///< of tags, behind those of collectives

  Envelopes(Communicator& comm, const ChannelShape& shape);
  void expect(size_t slot);
  void leave(size_t slot, const Envelope& envelope);
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
  void expect(size_t slot) override;
  bool came(size_t slot) override { return done(slot); }
  void leave(size_t slot, const Envelope& envelope) override;
  bool left(size_t slot) override { return done(slot); }

 private:
  Envelope envelope(size_t slot) const override { return envelopes_[slot]; }
  bool done(size_t slot) { return envelopes_.done(slot) && comm().test(requests_[slot]); }

  Envelopes envelopes_;
  std::vector<Request> requests_;
};

}  // namespace espalier::parallel
