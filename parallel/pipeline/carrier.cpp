#include "parallel/pipeline/carrier.h"

#include <cstring>

namespace espalier::parallel {
namespace {

constexpr Traffic kTraffic = Traffic::point_to_point;

Tag whole_tag(const ChannelShape& shape) { return {shape.number, kTraffic, sizeof(Envelope)}; }

/// Tag of a message in device memory.
Tag content_tag(const ChannelShape& shape) {
  return {.number = shape.number, .kind = kTraffic, .envelope = 0, .whole = true};
}

}  // namespace

std::string_view name_of(CarrierKind carrier) {
  return carrier == CarrierKind::host ? "host" : carrier == CarrierKind::mpi ? "mpi" : "nccl";
}

std::string describe(const Envelope& envelope) {
  return fmt::format("the {} of micro-batch {} for stage {} in run {}",
                     envelope.gradient != 0 ? "gradient" : "activation", envelope.micro_batch,
                     envelope.stage, envelope.run);
}

Buffer make_ring(Arena& arena, std::string_view name, size_t bytes, int buffers) {
  require(buffers >= 1, "at least one buffer", buffers);
  return arena.allocate(Memory::communication, name, DType::uint8,
                        Shape{static_cast<int64_t>(ring_bytes(bytes, buffers))});
}

std::span<std::byte> ring_part(const Buffer& ring, size_t slot, size_t bytes) {
  return {static_cast<std::byte*>(ring.tensor().data) + slot * buffer_bytes(bytes),
          bytes + sizeof(Envelope)};
}

Carrier::Carrier(Communicator& comm, Arena& arena, const ChannelShape& shape)
    : comm_(comm),
      shape_(shape),
      ring_(make_ring(arena, shape.sends ? "messages sent" : "messages received", shape.bytes,
                      shape.buffers)) {}

std::span<std::byte> Carrier::whole(size_t slot) const {
  return ring_part(ring_, slot, shape_.bytes);
}

std::span<std::byte> Carrier::content(size_t slot) const { return whole(slot).first(shape_.bytes); }

void Carrier::accept(size_t slot, const Envelope& expected) {
  const Envelope found = envelope(slot);
  if (found != expected) {
    const int sender = comm_.members().world[static_cast<size_t>(shape_.peer)];
    throw Failure(fmt::format("rank {} sent {} where {} was expected: a message was lost or "
                              "duplicated; resume from the last checkpoint, and check the network",
                              sender, describe(found), describe(expected)),
                  true);
  }
  follow_transfer(slot);
}

HostCarrier::HostCarrier(Communicator& comm, Arena& arena, const ChannelShape& shape)
    : Carrier(comm, arena, shape), requests_(slots()) {}

void HostCarrier::post(size_t slot) {
  requests_[slot] = comm().irecv(shape().peer, whole_tag(shape()), whole(slot));
}

Envelope HostCarrier::envelope(size_t slot) const {
  Envelope found;
  std::memcpy(&found, whole(slot).data() + shape().bytes, sizeof found);
  return found;
}

void HostCarrier::send(size_t slot, const Envelope& envelope) {
  const std::span<std::byte> message = whole(slot);
  std::memcpy(message.data() + shape().bytes, &envelope, sizeof envelope);
  requests_[slot] = comm().isend(shape().peer, whole_tag(shape()), message);
}

Envelopes::Envelopes(Communicator& comm, const ChannelShape& shape)
    : comm_(comm),
      peer_(shape.peer),
      tag_{kFirstNumber + shape.number, Traffic::other},
      envelopes_(static_cast<size_t>(shape.buffers)),
      requests_(envelopes_.size()) {}

void Envelopes::post(size_t slot) {
  requests_[slot] =
      comm_.irecv(peer_, tag_, std::as_writable_bytes(std::span(&envelopes_[slot], 1)));
}

void Envelopes::send(size_t slot, const Envelope& envelope) {
  envelopes_[slot] = envelope;
  requests_[slot] = comm_.isend(peer_, tag_, std::as_bytes(std::span(&envelopes_[slot], 1)));
}

MpiCarrier::MpiCarrier(Communicator& comm, Arena& arena, const ChannelShape& shape)
    : Carrier(comm, arena, shape), envelopes_(comm, shape), requests_(slots()) {}

void MpiCarrier::post(size_t slot) {
  requests_[slot] = comm().irecv(shape().peer, content_tag(shape()), content(slot));
  envelopes_.post(slot);
}

void MpiCarrier::send(size_t slot, const Envelope& envelope) {
  requests_[slot] = comm().isend(shape().peer, content_tag(shape()), content(slot));
  envelopes_.send(slot, envelope);
}

}  // namespace espalier::parallel
