#include "parallel/pipeline/mailbox.h"

#include <algorithm>

namespace espalier::parallel {

Inbox::Inbox(Stream& stream, std::unique_ptr<Carrier> carrier)
    : stream_(stream),
      carrier_(std::move(carrier)),
      released_(carrier_->slots(), stream.mark()) {  // after the zeros of new memory
  expect_more();
}

bool Inbox::arrived() {
  expect_more();
  look();
  return read_ < arrived_;
}

void Inbox::advance() {
  expect_more();
  if (carrier_->answers()) {
    look();
  }
}

std::span<const std::byte> Inbox::content(const Envelope& expected) {
  require(read_ < arrived_, "a message that has arrived", read_, arrived_);
  carrier_->open(slot_of(read_), expected);
  return carrier_->content(slot_of(read_));
}

void Inbox::release(Mark read) {
  ++read_;
  released_.push_back(read);
  advance();
}

void Inbox::expect_more() {
  while (!released_.empty() && stream_.passed(released_.front())) {
    released_.pop_front();
    carrier_->expect(slot_of(expected_++));
  }
}

/// Nobody need be there to send what nobody waits for.
void Inbox::look() {
  while (arrived_ < expected_ && (arrived_ == read_ || carrier_->answers()) &&
         carrier_->came(slot_of(arrived_))) {
    ++arrived_;
  }
}

Outbox::Outbox(Stream& stream, std::unique_ptr<Carrier> carrier)
    : stream_(stream), carrier_(std::move(carrier)) {}

bool Outbox::free() {
  advance();
  return waiting_.size() < carrier_->slots() && carrier_->left(carrier_->slot_of(sent_));
}

std::span<std::byte> Outbox::content() const { return carrier_->content(carrier_->slot_of(sent_)); }

void Outbox::send(const Envelope& envelope, Mark filled) {
  waiting_.push_back({.envelope = envelope, .filled = filled});
  ++sent_;
  advance();
}

void Outbox::advance() {
  while (!waiting_.empty() && stream_.passed(waiting_.front().filled) && carrier_->clear()) {
    const auto number = sent_ - static_cast<int64_t>(waiting_.size());
    carrier_->leave(carrier_->slot_of(number), waiting_.front().envelope);
    waiting_.pop_front();
  }
}

bool Outbox::flushed() {
  advance();
  bool all = waiting_.empty();
  for (size_t slot = 0; slot < carrier_->slots(); ++slot) {
    all = carrier_->left(slot) && all;
  }
  return all;
}

LocalBox::LocalBox(Arena& arena, size_t bytes, int buffers)
    : bytes_(bytes), buffers_(buffers), memory_(make_ring(arena, "handed over", bytes, buffers)) {}

std::span<std::byte> LocalBox::buffer(int64_t number) const {
  return ring_part(memory_, static_cast<size_t>(number % buffers_), bytes_).first(bytes_);
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
