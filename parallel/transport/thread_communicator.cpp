#include "parallel/transport/thread_communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "parallel/transport/collectives.h"
#include "src/core/trace.h"

namespace espalier::parallel {

namespace {

struct ThreadMessage {
  int from = 0;
  double arrival = 0;                  ///< seconds; the receiver may not read earlier
  std::vector<std::byte> copy;         ///< of an eager message
  std::span<const std::byte> content;  ///< of `copy` or the sender's buffer
  Trailer trailer;
  bool reading = false;  ///< the receiver is copying
  bool read = false;
  bool withdrawn = false;  ///< the sender abandoned it
};

struct ThreadReceive {
  std::span<std::byte> data;
  std::shared_ptr<ThreadMessage> message;  ///< once bound
  bool done = false;                       ///< only the receiver's thread accesses it
};

/// State shared by the ranks of one thread world: one mailbox a rank.
///
/// Matching: the later of a message and a receive binds the two, in posting order within one
/// (context, sender, tag). The receiver's thread then copies, outside the lock, whenever it drives
/// any request. So "send, then receive, then wait for both" never deadlocks, in either order of the
/// waits. One mutex guards all bookkeeping.
class ThreadWorld {
 public:
  /// (context, sender, kind, number); ranks of the world.
  using Key = std::tuple<int, int, int, int>;

  ThreadWorld(int ranks, const ThreadOptions& options)
      : options_(options), boxes_(static_cast<size_t>(ranks)) {}

  int size() const { return static_cast<int>(boxes_.size()); }
  /// Whether messages may lie in any memory: true if `options.copy` is set.
  bool copies_anything() const { return static_cast<bool>(options_.copy); }

  /// Copies small messages; these complete at once, and the result is null.
  std::shared_ptr<ThreadMessage> send(int to, const Key& key, std::span<const std::byte> data,
                                      const Trailer& trailer) {
    if (options_.network) {
      send_by_network(to, key, data, trailer);
      return nullptr;
    }
    auto message = new_message(std::get<1>(key), trailer);
    const bool eager = data.size() <= options_.eager_bytes;
    if (eager) {
      message->copy.resize(data.size());
      copy(data, message->copy.data());
      message->content = message->copy;
    } else {
      message->content = data;
    }
    deliver(to, key, message);
    return eager ? nullptr : message;
  }

  std::shared_ptr<ThreadReceive> receive(int to, const Key& key, std::span<std::byte> data) {
    auto receive = std::make_shared<ThreadReceive>();
    receive->data = data;
    const std::scoped_lock lock(mutex_);
    auto& channels = boxes_[to].channels;
    Channel& channel = channels[key];
    if (channel.messages.empty()) {
      channel.receives.push_back(receive);
    } else {
      bind(to, receive, std::move(channel.messages.front()));
      channel.messages.pop_front();
      if (channel.messages.empty()) {
        channels.erase(key);
      }
    }
    return receive;
  }

  /// Throws PeerLost when a rank has failed.
  void throw_if_poisoned() {
    const std::scoped_lock lock(mutex_);
    throw_poison();
  }

  /// Copies the messages that have arrived for `rank`; called on that rank's thread.
  void progress(int rank) {
    Box& box = boxes_[rank];
    std::unique_lock lock(mutex_);
    while (const std::shared_ptr<ThreadReceive> receive = next_bound(box)) {
      ThreadMessage& message = *receive->message;
      lock.unlock();
      copy(message.content, receive->data.data());
      receive->done = true;
      lock.lock();
      message.reading = false;
      message.read = true;
      notify(message.from);
      copied_.notify_all();
    }
  }

  /// Whether the message has been read; throws PeerLost when it never will be.
  bool sent(const ThreadMessage& message, int to) {
    const std::scoped_lock lock(mutex_);
    if (message.read) {
      return true;
    }
    throw_poison();
    if (boxes_[to].gone) {
      throw PeerLost({to}, fmt::format("rank {} has ended without receiving {} bytes from rank {}",
                                       to, message.content.size(), message.from));
    }
    return false;
  }

  /// The arrived message of a receive; empty: none yet. Throws PeerLost if none can come any more.
  std::optional<Arrival> arrival(const ThreadReceive& receive, int from) {
    const std::scoped_lock lock(mutex_);
    const ThreadMessage* message = receive.message.get();
    if (receive.done) {
      return Arrival{.trailer = message->trailer, .wrong_size = {}};
    }
    throw_poison();
    // A sender that withdraws is about to poison the world with its reason, or to leave.
    if (message != nullptr && !message->withdrawn) {
      const size_t size = message->content.size();
      if (size != receive.data.size()) {
        return Arrival{.trailer = message->trailer, .wrong_size = size};
      }
    } else if (boxes_[from].gone) {
      throw PeerLost(
          {from}, fmt::format("rank {} has ended without sending {} bytes that are awaited", from,
                              receive.data.size()));
    }
    return {};
  }

  void withdraw(ThreadMessage& message) {
    std::unique_lock lock(mutex_);
    copied_.wait(lock, [&] { return !message.reading; });
    if (!message.read) {
      message.withdrawn = true;
      message.content = {};
    }
  }

  void withdraw(const std::shared_ptr<ThreadReceive>& receive, int to, const Key& key) {
    const std::scoped_lock lock(mutex_);
    auto& channels = boxes_[to].channels;
    if (const auto found = channels.find(key); found != channels.end()) {
      std::erase(found->second.receives, receive);
      if (found->second.receives.empty() && found->second.messages.empty()) {
        channels.erase(found);
      }
    }
    std::erase(boxes_[to].bound, receive);
  }

  /// Waits, for at most `seconds`, until an event for `rank` since its last call. The wait is
  /// shorter with `while_waiting`, or when a bound message arrives earlier.
  void wait_for_event(int rank, double seconds) {
    if (options_.while_waiting) {
      options_.while_waiting();
      seconds = std::min(seconds, 1e-3);
    }
    std::unique_lock lock(mutex_);
    Box& box = boxes_[rank];
    for (const auto& receive : box.bound) {  // bound messages wait for their arrival time
      seconds = std::clamp(receive->message->arrival - now_seconds(), 0.0, seconds);
    }
    box.changed.wait_for(lock, std::chrono::duration<double>(seconds),
                         [&] { return box.events != box.seen; });
    // An event during the caller's own checks must not be lost: it ends the next wait at once.
    box.seen = box.events;
  }

  void poison(int rank, const Failure& why) {
    const std::scoped_lock lock(mutex_);
    if (!failed_) {
      failed_ = rank;
      why_ = why;
    }
    for (int r = 0; r < size(); ++r) {
      notify(r);
    }
  }

  void show_life() { life_ = now_seconds(); }
  double last_life() const { return life_; }

  void leave(int rank) {
    const std::scoped_lock lock(mutex_);
    boxes_[rank].gone = true;
    for (int r = 0; r < size(); ++r) {
      notify(r);
    }
  }

  /// Reserves new context numbers, for `split`.
  int reserve_contexts(int count) {
    const std::scoped_lock lock(mutex_);
    const int first = contexts_;
    contexts_ += count;
    return first;
  }

 private:
  struct Channel {
    std::deque<std::shared_ptr<ThreadMessage>> messages;
    std::deque<std::shared_ptr<ThreadReceive>> receives;
  };
  struct Box {
    std::map<Key, Channel> channels;                   ///< only non-empty channels
    std::deque<std::shared_ptr<ThreadReceive>> bound;  ///< to be copied
    std::condition_variable changed;
    uint64_t events = 0;
    uint64_t seen = 0;
    bool gone = false;
  };

  std::shared_ptr<ThreadMessage> new_message(int from, const Trailer& trailer) const {
    auto message = std::make_shared<ThreadMessage>();
    message->from = from;
    message->arrival = options_.latency > 0 ? now_seconds() + options_.latency : 0;
    message->trailer = trailer;
    return message;
  }

  void send_by_network(int to, const Key& key, std::span<const std::byte> data,
                       const Trailer& trailer) {
    const auto& [context, from, kind, number] = key;
    Packet sent{.from = from,
                .to = to,
                .tag = {.number = number, .kind = static_cast<Traffic>(kind)},
                .context = context,
                .bytes = std::vector<std::byte>(data.size()),
                .trailer = trailer};
    copy(data, sent.bytes.data());
    for (Packet& packet : options_.network(std::move(sent))) {
      auto message = new_message(packet.from, packet.trailer);
      message->copy = std::move(packet.bytes);
      message->content = message->copy;
      deliver(packet.to,
              {packet.context, packet.from, static_cast<int>(packet.tag.kind), packet.tag.number},
              message);
    }
  }

  void deliver(int to, const Key& key, const std::shared_ptr<ThreadMessage>& message) {
    const std::scoped_lock lock(mutex_);
    auto& channels = boxes_[to].channels;
    Channel& channel = channels[key];
    if (channel.receives.empty()) {
      channel.messages.push_back(message);
    } else {
      bind(to, std::move(channel.receives.front()), message);
      channel.receives.pop_front();
      if (channel.receives.empty()) {
        channels.erase(key);
      }
    }
  }

  void bind(int to, std::shared_ptr<ThreadReceive> receive,
            std::shared_ptr<ThreadMessage> message) {
    receive->message = std::move(message);
    boxes_[to].bound.push_back(std::move(receive));
    notify(to);
  }

  std::shared_ptr<ThreadReceive> next_bound(Box& box) const {
    const double now = options_.latency > 0 ? now_seconds() : 0;
    for (auto at = box.bound.begin(); at != box.bound.end();) {
      ThreadMessage& message = *(*at)->message;
      if (message.arrival > now) {
        ++at;
        continue;
      }
      const std::shared_ptr<ThreadReceive> receive = std::move(*at);
      at = box.bound.erase(at);
      if (!message.withdrawn && message.content.size() == receive->data.size()) {
        message.reading = true;
        return receive;
      }
    }
    return nullptr;
  }

  void notify(int rank) {
    Box& box = boxes_[rank];
    ++box.events;
    box.changed.notify_one();
  }

  void throw_poison() const {
    if (failed_) {
      throw PeerLost({*failed_}, fmt::format("rank {} has failed: {}", *failed_, why_.what()),
                     why_.retryable());
    }
  }

  void copy(std::span<const std::byte> from, std::byte* to) const {
    if (options_.copy) {
      options_.copy(to, from.data(), from.size());
    } else {
      std::ranges::copy(from, to);
    }
  }

  std::mutex mutex_;
  std::condition_variable copied_;
  ThreadOptions options_;
  std::deque<Box> boxes_;
  int contexts_ = 1;
  std::optional<int> failed_;
  Failure why_{""};
  std::atomic<double> life_ = 0;
};

class SendOperation final : public Operation {
 public:
  SendOperation(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadMessage> message, int to)
      : world_(std::move(world)), message_(std::move(message)), to_(to) {}
  ~SendOperation() override {
    if (!done_) {
      world_->withdraw(*message_);
    }
  }
  bool test() override {
    world_->progress(message_->from);
    return done_ = world_->sent(*message_, to_);
  }

 private:
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadMessage> message_;
  int to_;
  bool done_ = false;
};

class ReceiveOperation final : public Operation {
 public:
  ReceiveOperation(std::shared_ptr<ThreadWorld> world, int to, const ThreadWorld::Key& key,
                   std::span<std::byte> data)
      : world_(std::move(world)), to_(to), key_(key), receive_(world_->receive(to, key, data)) {}
  ~ReceiveOperation() override {
    if (!receive_->done) {
      world_->withdraw(receive_, to_, key_);
    }
  }
  bool test() override {
    world_->progress(to_);
    const std::optional<Arrival> arrived = world_->arrival(*receive_, std::get<1>(key_));
    arrival = arrived.value_or(Arrival());
    return arrived.has_value();
  }

 private:
  std::shared_ptr<ThreadWorld> world_;
  int to_;
  ThreadWorld::Key key_;
  std::shared_ptr<ThreadReceive> receive_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, int context, Membership members)
      : Communicator(std::move(members)), world_(std::move(world)), context_(context) {}
  ThreadCommunicator(const ThreadCommunicator& root, int context, Membership members)
      : Communicator(std::move(members), root), world_(root.world_), context_(context) {}

  std::string_view name() const override { return "threads"; }
  std::string takes_device_memory() const override {
    return world_->copies_anything() ? "yes" : "no";
  }
  std::unique_ptr<Communicator> split(int color, int key) override;
  void progress() override {
    world_->throw_if_poisoned();
    world_->progress(world_rank(rank()));
  }
  void show_life() noexcept override { world_->show_life(); }
  double last_life() const override { return world_->last_life(); }
  void poison(const Failure& why) noexcept override {
    set_broken();
    try {
      world_->poison(world_rank(rank()), why);
    } catch (...) {  // best effort: no memory for the text
    }
  }
  void abort(int code) noexcept override {
    poison(Failure(code == 0 ? "it aborted" : "it aborted with an error"));
  }

 private:
  int world_rank(int r) const { return members().world[r]; }
  ThreadWorld::Key key_of(int from, Tag tag) const {
    return {context_, world_rank(from), static_cast<int>(tag.kind), tag.number};
  }
  std::unique_ptr<Operation> start_send(int to, Tag tag, std::span<const std::byte> data,
                                        const Trailer& trailer) override {
    auto message = world_->send(world_rank(to), key_of(rank(), tag), data, trailer);
    return message == nullptr
               ? nullptr
               : std::make_unique<SendOperation>(world_, std::move(message), world_rank(to));
  }
  std::unique_ptr<Operation> start_receive(int from, Tag tag, std::span<std::byte> data) override {
    return std::make_unique<ReceiveOperation>(world_, world_rank(rank()), key_of(from, tag), data);
  }
  void idle(int /*round*/) override {
    world_->wait_for_event(world_rank(rank()), std::min(0.05, timeout() / 4));
  }

  std::shared_ptr<ThreadWorld> world_;
  int context_;
};

std::unique_ptr<Communicator> ThreadCommunicator::split(int color, int key) {
  SplitPart part = split_by_messages(
      *this, color, key, [this](int contexts) { return world_->reserve_contexts(contexts); });
  return std::make_unique<ThreadCommunicator>(*this, part.context, std::move(part.members));
}

std::unique_ptr<Communicator> make_rank(const std::shared_ptr<ThreadWorld>& world, int rank,
                                        int ranks_a_node) {
  Membership members{.rank = rank};
  for (int r = 0; r < world->size(); ++r) {
    members.world.push_back(r);
    members.node.push_back(ranks_a_node > 0 ? r / ranks_a_node : 0);
  }
  return std::make_unique<ThreadCommunicator>(world, 0, std::move(members));
}

/// Calls the body of one rank; `first` gets the first error of all ranks.
void run_rank(const std::shared_ptr<ThreadWorld>& world, int rank, const ThreadOptions& options,
              const std::function<void(Communicator&)>& body, std::mutex& mutex,
              std::exception_ptr& first) {
  const auto keep = [&](const Failure& why) {
    const std::scoped_lock lock(mutex);
    if (first == nullptr) {
      first = std::current_exception();
      world->poison(rank, why);
    }
  };
  try {
    const auto comm = make_rank(world, rank, options.ranks_a_node);
    comm->set_timeout(options.timeout);
    body(*comm);
  } catch (const Failure& failure) {
    keep(failure);
  } catch (const std::exception& error) {
    keep(Failure(error.what()));
  } catch (...) {
    keep(Failure("unknown error"));
  }
  world->leave(rank);
}

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& body,
               const ThreadOptions& options) {
  require(ranks >= 1, "at least one rank", ranks);
  const auto world = std::make_shared<ThreadWorld>(ranks, options);
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { run_rank(world, rank, options, body, mutex, first); });
    }
  }
  if (first != nullptr) {
    std::rethrow_exception(first);
  }
}

std::unique_ptr<Communicator> self_communicator() {
  return make_rank(std::make_shared<ThreadWorld>(1, ThreadOptions{}), 0, 0);
}

}  // namespace espalier::parallel
