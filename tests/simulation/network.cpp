// Messages of a simulated world, and its communicators.
#include <algorithm>
#include <exception>

#include "parallel/transport/collectives.h"
#include "src/core/checksum.h"
#include "tests/simulation/world_state.h"

namespace espalier::simulation {
namespace {

using parallel::Communicator;
using parallel::Membership;
using parallel::Operation;
using parallel::PeerLost;
using parallel::Tag;
using parallel::Trailer;

/// The log's entry for a message. Other traffic holds times and the memory of the process, which
/// differ between two runs of a seed: its size.
uint64_t logged(const Message& message) {
  const bool other = std::get<2>(message.key) == static_cast<int>(parallel::Traffic::other);
  return other ? message.content.size() : message.digest;
}

/// Inverts a bit of content and trailer.
void flip(Message& message, uint64_t bit) {
  const auto trailer = std::as_writable_bytes(std::span(&message.trailer, 1));
  bit %= 8 * (message.content.size() + trailer.size());
  const uint64_t byte = bit / 8;
  std::byte& struck = byte < message.content.size() ? message.content[byte]
                                                    : trailer[byte - message.content.size()];
  struck ^= static_cast<std::byte>(1U << (bit % 8));
}

class SendOperation final : public Operation {
 public:
  SendOperation(World& world, MessagePtr message) : world_(world), message_(std::move(message)) {}
  ~SendOperation() override {
    if (!message_->received) {
      world_.withdraw(message_);
    }
  }
  bool test() override { return world_.sent(message_); }

 private:
  World& world_;
  MessagePtr message_;
};

class ReceiveOperation final : public Operation {
 public:
  ReceiveOperation(World& world, int rank, const Key& key, std::span<std::byte> data)
      : world_(world), rank_(rank), key_(key), receive_(world.receive(rank, key, data)) {}
  ~ReceiveOperation() override {
    if (!receive_->done) {
      world_.withdraw(rank_, receive_, key_);
    }
  }
  bool test() override {
    const bool done = world_.received(rank_, receive_, key_);
    arrival = receive_->arrival;
    return done;
  }

 private:
  World& world_;
  int rank_;
  Key key_;
  ReceivePtr receive_;
};

class SimulatedCommunicator final : public Communicator {
 public:
  SimulatedCommunicator(World& world, Membership members)
      : Communicator(std::move(members)), world_(world) {}
  SimulatedCommunicator(const SimulatedCommunicator& root, int context, Membership members)
      : Communicator(std::move(members), root), world_(root.world_), context_(context) {}

  std::string_view name() const override { return "simulation"; }
  std::unique_ptr<Communicator> split(int color, int key) override {
    parallel::SplitPart part = parallel::split_by_messages(
        *this, color, key, [this](int contexts) { return world_.reserve_contexts(contexts); });
    return std::make_unique<SimulatedCommunicator>(*this, part.context, std::move(part.members));
  }
  void progress() override { world_.progress(here()); }
  void show_life() noexcept override { world_.show_life(here()); }
  double last_life() const override { return world_.last_life(here()); }
  bool begin_busy() override {
    world_.begin_busy(here(), timeout());
    return true;
  }
  void end_busy() noexcept override { world_.end_busy(here()); }
  void poison(const Failure& why) noexcept override {
    set_broken();
    world_.poison(here(), why);
  }
  void abort(int code) noexcept override {
    poison(Failure(code == 0 ? "it aborted" : "it aborted with an error"));
  }

 private:
  int here() const { return members().world[rank()]; }
  Key key_of(int from, Tag tag) const {
    return {context_, members().world[from], static_cast<int>(tag.kind), tag.number};
  }
  std::unique_ptr<Operation> start_send(int to, Tag tag, std::span<const std::byte> data,
                                        const Trailer& trailer) override {
    MessagePtr message = world_.send(members().world[to], key_of(rank(), tag), data, trailer);
    return message == nullptr ? nullptr
                              : std::make_unique<SendOperation>(world_, std::move(message));
  }
  std::unique_ptr<Operation> start_receive(int from, Tag tag, std::span<std::byte> data) override {
    return std::make_unique<ReceiveOperation>(world_, here(), key_of(from, tag), data);
  }
  void idle(int /*round*/) override { world_.idle(here(), timeout()); }

  World& world_;
  int context_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(World& world, Membership members) {
  return std::make_unique<SimulatedCommunicator>(world, std::move(members));
}

/// The fault of the message that this rank sends now; null: none.
const Fault* World::message_fault(int from) {
  for (size_t i = 0; i < happened_.size(); ++i) {
    const Fault& fault = options_.faults[i];
    if (target_of(fault.kind) == Target::send && !happened_[i] && fault.rank == from &&
        ranks_[from].counts.sends == fault.at) {
      happened_[i] = true;
      note_fault(fault, now_ + fault.seconds);
      return &fault;
    }
  }
  return nullptr;
}

MessagePtr World::send(int to, const Key& key, std::span<const std::byte> data,
                       const Trailer& trailer) {
  const int from = std::get<1>(key);
  auto message = std::make_shared<Message>();
  message->from = from;
  message->to = to;
  message->key = key;
  message->content.assign(data.begin(), data.end());
  message->digest = checksum(data);
  message->trailer = trailer;
  call(from, EventKind::send, to, logged(*message));
  const bool eager = data.size() <= eager_bytes_;
  message->buffer = eager ? std::span<const std::byte>() : data;
  ++ranks_[from].counts.sends;
  const Fault* fault = message_fault(from);
  const FaultKind kind = fault == nullptr ? FaultKind::stop : fault->kind;
  if (kind == FaultKind::cut) {
    cut_.insert({from, to});
  }
  if (kind == FaultKind::drop || cut_.contains({from, to})) {
    record(EventKind::lose, to, from);
    return eager ? nullptr : message;
  }
  if (kind == FaultKind::flip) {
    flip(*message, fault->bit);
  }
  double& last = last_arrival_[{to, key}];
  last = std::max(last, now_ + some_latency() + (kind == FaultKind::delay ? fault->seconds : 0));
  double& last_of_pair = last_arrival_pair_[{from, to}];
  last_of_pair = std::max(last_of_pair, last);
  for (int copies = kind == FaultKind::duplicate ? 2 : 1; copies > 0; --copies) {
    at(last, [this, message] { arrive(message); });
  }
  return eager ? nullptr : message;
}

void World::arrive(const MessagePtr& message) {
  record(EventKind::arrive, message->to, message->from, logged(*message));
  Channel& channel = ranks_[message->to].channels[message->key];
  notify(message->to);
  if (message->withdrawn) {
    return;
  }
  if (channel.receives.empty()) {
    channel.messages.push_back(message);
    return;
  }
  const ReceivePtr receive = channel.receives.front();
  channel.receives.pop_front();
  match(*message, *receive);
}

void World::match(Message& message, Receive& receive) {
  const bool late = message.received;  // a second copy
  if (!late && !message.buffer.empty() && checksum(message.buffer) != message.digest) {
    violations_.push_back(
        fmt::format("rank {} changed {} bytes while it sent them to rank {} (tag {})", message.from,
                    message.buffer.size(), message.to, std::get<3>(message.key)));
  }
  message.received = true;
  notify(message.from);
  notify(message.to);
  receive.done = true;
  receive.arrival.trailer = message.trailer;
  if (message.content.size() != receive.data.size()) {
    receive.arrival.wrong_size = message.content.size();
    return;
  }
  std::ranges::copy(message.content, receive.data.begin());
}

ReceivePtr World::receive(int rank, const Key& key, std::span<std::byte> data) {
  call(rank, EventKind::receive, std::get<1>(key), data.size());
  auto receive = std::make_shared<Receive>();
  receive->data = data;
  Channel& channel = ranks_[rank].channels[key];
  if (channel.messages.empty()) {
    channel.receives.push_back(receive);
  } else {
    const MessagePtr message = channel.messages.front();
    channel.messages.pop_front();
    match(*message, *receive);
  }
  return receive;
}

bool World::sent(const MessagePtr& message) {
  call(message->from, EventKind::test, message->to);
  if (!message->received && ranks_[message->from].gone.contains(message->to)) {
    throw PeerLost({message->to},
                   fmt::format("rank {} has ended without receiving {} bytes from rank {}",
                               message->to, message->content.size(), message->from));
  }
  return message->received;
}

bool World::received(int rank, const ReceivePtr& receive, const Key& key) {
  const int from = std::get<1>(key);
  call(rank, EventKind::test, from);
  if (!receive->done && ranks_[rank].gone.contains(from)) {
    throw PeerLost({from}, fmt::format("rank {} has ended without sending {} bytes that are "
                                       "awaited",
                                       from, receive->data.size()));
  }
  return receive->done;
}

void World::withdraw(const MessagePtr& message) {
  message->withdrawn = true;
  message->buffer = {};
  std::erase(ranks_[message->to].channels[message->key].messages, message);
}

void World::withdraw(int rank, const ReceivePtr& receive, const Key& key) {
  std::erase(ranks_[rank].channels[key].receives, receive);
}

void World::progress(int rank) {
  call(rank, EventKind::progress);
  Rank& me = ranks_[rank];
  if (std::exchange(me.life, false)) {
    me.last_life = now_;
  }
  if (me.notice && std::uncaught_exceptions() == 0) {
    throw PeerLost(*me.notice);
  }
}

void World::idle(int rank, double timeout) {
  progress(rank);
  // Shorter than the gap by which wait_until notices that the process was stopped.
  sleep(rank, now_ + timeout / static_cast<double>(draw_.between(8, 20)), true);
}

void World::poison(int rank, const Failure& why) {
  if (ranks_[rank].dead) {
    return;
  }
  for (int to = 0; to < options_.ranks; ++to) {
    if (to == rank || !options_.notices_arrive || cut_.contains({rank, to})) {
      continue;
    }
    const PeerLost notice({rank}, fmt::format("rank {} has failed: {}", rank, why.what()),
                          why.retryable());
    at(now_ + some_latency(), [this, to, notice] {
      if (!ranks_[to].notice) {
        ranks_[to].notice = notice;
      }
      notify(to);
    });
  }
}

void World::show_life(int rank) {
  if (ranks_[rank].dead) {
    return;
  }
  for (int to = 0; to < options_.ranks; ++to) {
    if (to != rank && !cut_.contains({rank, to})) {
      at(now_ + some_latency(), [this, to] {
        ranks_[to].life = true;
        notify(to);
      });
    }
  }
}

void World::tell_gone(int rank) {
  for (int to = 0; to < options_.ranks; ++to) {
    if (to != rank && !cut_.contains({rank, to})) {
      const auto last = last_arrival_pair_.find({rank, to});
      const double arrival = last == last_arrival_pair_.end() ? now_ : std::max(now_, last->second);
      at(arrival + some_latency(), [this, rank, to] {
        ranks_[to].gone.insert(rank);
        notify(to);
      });
    }
  }
}

}  // namespace espalier::simulation
