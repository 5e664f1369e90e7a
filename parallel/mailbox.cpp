#include "parallel/mailbox.h"

#include <cstring>

namespace espalier::parallel {
namespace {

constexpr Traffic kTraffic = Traffic::point_to_point;

Buffer ring(Arena& arena, std::string_view name, size_t bytes, int buffers) {
  require(buffers >= 1, "at least one buffer", buffers);
  return arena.allocate(Memory::communication, name, DType::uint8,
                        Shape{static_cast<int64_t>(buffer_bytes(bytes)) * buffers});
}

std::span<std::byte> part(const Buffer& memory, size_t slot, size_t bytes) {
  return {static_cast<std::byte*>(memory.tensor().data) + slot * buffer_bytes(bytes),
          bytes + sizeof(Envelope)};
}

Tag tag_of(const ChannelShape& shape) { return {shape.number, kTraffic, sizeof(Envelope)}; }

}  // namespace

std::string describe(const Envelope& envelope) {
  return fmt::format("the {} of micro-batch {} for stage {} in run {}",
                     envelope.gradient != 0 ? "gradient" : "activation", envelope.micro_batch,
                     envelope.stage, envelope.run);
}

Ring::Ring(Arena& arena, std::string_view name, const ChannelShape& shape)
    : bytes_(shape.bytes),
      memory_(ring(arena, name, shape.bytes, shape.buffers)),
      requests_(static_cast<size_t>(shape.buffers)) {}

std::span<std::byte> Ring::buffer(size_t slot) const { return part(memory_, slot, bytes_); }

Inbox::Inbox(Communicator& comm, Arena& arena, const ChannelShape& shape)
    : comm_(comm), shape_(shape), ring_(arena, "messages received", shape) {
  for (size_t i = 0; i < ring_.slots(); ++i) {
    post(i);
  }
}

void Inbox::post(size_t slot) {
  ring_.request(slot) = comm_.irecv(shape_.peer, tag_of(shape_), ring_.buffer(slot));
}

bool Inbox::arrived() { return comm_.test(ring_.request(ring_.slot())); }

std::span<const std::byte> Inbox::content(const Envelope& expected) const {
  const std::span<std::byte> message = ring_.buffer(ring_.slot());
  Envelope found;
  std::memcpy(&found, message.data() + shape_.bytes, sizeof found);
  check(found == expected, "rank {} sent {} where {} was expected: messages were lost or doubled",
        comm_.members().world[static_cast<size_t>(shape_.peer)], describe(found),
        describe(expected));
  return message.first(shape_.bytes);
}

void Inbox::release() {
  const size_t read = ring_.slot();
  ring_.advance();
  post(read);
}

Outbox::Outbox(Communicator& comm, Arena& arena, const ChannelShape& shape)
    : comm_(comm), shape_(shape), ring_(arena, "messages sent", shape) {}

bool Outbox::free() { return comm_.test(ring_.request(ring_.slot())); }

std::span<std::byte> Outbox::content() const {
  return ring_.buffer(ring_.slot()).first(shape_.bytes);
}

void Outbox::send(const Envelope& envelope) {
  const size_t slot = ring_.slot();
  const std::span<std::byte> message = ring_.buffer(slot);
  std::memcpy(message.data() + shape_.bytes, &envelope, sizeof envelope);
  ring_.request(slot) = comm_.isend(shape_.peer, tag_of(shape_), message);
  ring_.advance();
}

bool Outbox::flushed() {
  bool all = true;
  for (size_t slot = 0; slot < ring_.slots(); ++slot) {
    all = comm_.test(ring_.request(slot)) && all;
  }
  return all;
}

LocalBox::LocalBox(Arena& arena, size_t bytes, int buffers)
    : bytes_(bytes), buffers_(buffers), memory_(ring(arena, "handed over", bytes, buffers)) {}

std::span<std::byte> LocalBox::buffer(int64_t number) const {
  return part(memory_, static_cast<size_t>(number % buffers_), bytes_).first(bytes_);
}

std::span<std::byte> LocalBox::push() {
  require(filled_ - taken_ < buffers_, "a buffer for what is handed over", buffers_);
  return buffer(filled_++);
}

std::span<const std::byte> LocalBox::front() const {
  require(taken_ < filled_, "something was handed over", taken_);
  return buffer(taken_);
}

}  // namespace espalier::parallel
