#include "parallel/pipeline/mailbox.h"

#include <algorithm>

namespace espalier::parallel {

Inbox::Inbox(Stream& stream, std::unique_ptr<Carrier> carrier)
    : stream_(stream),
      carrier_(std::move(carrier)),
      released_(carrier_->slots(), stream.mark()) {  // after the kernels that zero new memory
  post_receives();
}

bool Inbox::arrived() {
  post_receives();
  poll();
  return read_ < arrived_;
}

void Inbox::advance() {
  post_receives();
  if (carrier_->needs_polling()) {
    poll();
  }
}

std::span<const std::byte> Inbox::content(const Envelope& expected) {
  require(read_ < arrived_, "a message that has arrived", read_, arrived_);
  carrier_->accept(slot_of(read_), expected);
  return carrier_->content(slot_of(read_));
}

void Inbox::release(Mark read) {
  ++read_;
  released_.push_back(read);
  advance();
}

void Inbox::post_receives() {
  while (!released_.empty() && stream_.passed(released_.front())) {
    released_.pop_front();
    carrier_->post(slot_of(expected_++));
  }
}

/// Polls for a message only when one is awaited, unless the carrier needs polling.
void Inbox::poll() {
  while (arrived_ < expected_ && (arrived_ == read_ || carrier_->needs_polling()) &&
         carrier_->arrived(slot_of(arrived_))) {
    ++arrived_;
  }
}

Outbox::Outbox(Stream& stream, std::unique_ptr<Carrier> carrier)
    : stream_(stream), carrier_(std::move(carrier)) {}

bool Outbox::free() {
  advance();
  return waiting_.size() < carrier_->slots() && carrier_->sent(carrier_->slot_of(sent_));
}

std::span<std::byte> Outbox::content() const { return carrier_->content(carrier_->slot_of(sent_)); }

void Outbox::send(const Envelope& envelope, Mark filled) {
  waiting_.push_back({.envelope = envelope, .filled = filled});
  ++sent_;
  advance();
}

void Outbox::advance() {
  while (!waiting_.empty() && stream_.passed(waiting_.front().filled) && carrier_->can_send()) {
    const auto number = sent_ - static_cast<int64_t>(waiting_.size());
    carrier_->send(carrier_->slot_of(number), waiting_.front().envelope);
    waiting_.pop_front();
  }
}

bool Outbox::flushed() {
  advance();
  bool all = waiting_.empty();
  for (size_t slot = 0; slot < carrier_->slots(); ++slot) {
    all = carrier_->sent(slot) && all;
  }
  return all;
}

LocalBox::LocalBox(Arena& arena, size_t bytes, int buffers)
    : bytes_(bytes),
      buffers_(buffers),
      memory_(make_ring(arena, "local messages", bytes, buffers)) {}

std::span<std::byte> LocalBox::buffer(int64_t number) const {
  return ring_part(memory_, static_cast<size_t>(number % buffers_), bytes_).first(bytes_);
}

std::span<std::byte> LocalBox::push() {
  require(filled_ - taken_ < buffers_, "a free buffer between two local stages", buffers_);
  return buffer(filled_++);
}

std::span<const std::byte> LocalBox::front() const {
  require(taken_ < filled_, "a message between two local stages", taken_);
  return buffer(taken_);
}

}  // namespace espalier::parallel
