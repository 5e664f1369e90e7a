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

Inbox::Inbox(Communicator& comm, Arena& arena, const ChannelShape& shape)
    : comm_(comm),
      shape_(shape),
      memory_(ring(arena, "messages received", shape.bytes, shape.buffers)),
      requests_(static_cast<size_t>(shape.buffers)) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    post(i);
  }
}

std::span<std::byte> Inbox::buffer(size_t slot) const { return part(memory_, slot, shape_.bytes); }

void Inbox::post(size_t slot) {
  requests_[slot] = comm_.irecv(shape_.peer, tag_of(shape_), buffer(slot));
}

bool Inbox::arrived() { return comm_.test(requests_[slot()]); }

std::span<const std::byte> Inbox::content(const Envelope& expected) const {
  const std::span<std::byte> message = buffer(slot());
  Envelope found;
  std::memcpy(&found, message.data() + shape_.bytes, sizeof found);
  check(found == expected, "rank {} sent {} where {} was expected: messages were lost or doubled",
        comm_.members().world[static_cast<size_t>(shape_.peer)], describe(found),
        describe(expected));
  return message.first(shape_.bytes);
}

void Inbox::release() { post(static_cast<size_t>(next_++ % shape_.buffers)); }

Outbox::Outbox(Communicator& comm, Arena& arena, const ChannelShape& shape)
    : comm_(comm),
      shape_(shape),
      memory_(ring(arena, "messages sent", shape.bytes, shape.buffers)),
      requests_(static_cast<size_t>(shape.buffers)) {}

std::span<std::byte> Outbox::buffer(size_t slot) const { return part(memory_, slot, shape_.bytes); }

bool Outbox::free() { return comm_.test(requests_[slot()]); }

std::span<std::byte> Outbox::content() const { return buffer(slot()).first(shape_.bytes); }

void Outbox::send(const Envelope& envelope) {
  const std::span<std::byte> message = buffer(slot());
  std::memcpy(message.data() + shape_.bytes, &envelope, sizeof envelope);
  requests_[slot()] = comm_.isend(shape_.peer, tag_of(shape_), message);
  ++next_;
}

bool Outbox::flushed() {
  bool all = true;
  for (Request& request : requests_) {
    all = comm_.test(request) && all;
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
