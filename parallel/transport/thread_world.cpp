#include "parallel/transport/thread_world.h"

#include <algorithm>
#include <chrono>

#include "src/core/trace.h"

namespace espalier::parallel {

ThreadWorld::ThreadWorld(int ranks, const ThreadOptions& options)
    : options_(options), boxes_(static_cast<size_t>(ranks)) {}

void ThreadWorld::copy(std::span<const std::byte> from, std::byte* to) const {
  if (options_.copy) {
    options_.copy(to, from.data(), from.size());
  } else {
    std::ranges::copy(from, to);
  }
}

void ThreadWorld::notify(int rank) {
  Box& box = boxes_[rank];
  ++box.events;
  box.changed.notify_one();
}

void ThreadWorld::throw_poison() const {
  if (failed_) {
    throw PeerLost({*failed_}, fmt::format("rank {} has failed: {}", *failed_, why_));
  }
}

void ThreadWorld::throw_if_poisoned() {
  const std::scoped_lock lock(mutex_);
  throw_poison();
}

std::shared_ptr<ThreadMessage> ThreadWorld::send(int to, const Key& key,
                                                 std::span<const std::byte> data) {
  auto message = std::make_shared<ThreadMessage>();
  message->from = std::get<1>(key);
  message->arrival = options_.latency > 0 ? now_seconds() + options_.latency : 0;
  const bool eager = data.size() <= options_.eager_bytes;
  if (eager) {
    message->copy.resize(data.size());
    copy(data, message->copy.data());
    message->content = message->copy;
  } else {
    message->content = data;
  }
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
  return eager ? nullptr : message;
}

std::shared_ptr<ThreadReceive> ThreadWorld::receive(int to, const Key& key,
                                                    std::span<std::byte> data) {
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

void ThreadWorld::bind(int to, std::shared_ptr<ThreadReceive> receive,
                       std::shared_ptr<ThreadMessage> message) {
  receive->message = std::move(message);
  boxes_[to].bound.push_back(std::move(receive));
  notify(to);
}

std::shared_ptr<ThreadReceive> ThreadWorld::next_bound(Box& box) const {
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

void ThreadWorld::progress(int rank) {
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

bool ThreadWorld::sent(const ThreadMessage& message, int to) {
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

void ThreadWorld::check_receive(const ThreadReceive& receive, int from) {
  const std::scoped_lock lock(mutex_);
  throw_poison();
  const ThreadMessage* message = receive.message.get();
  // A sender that withdraws is about to poison the world with its reason, or to leave.
  if (message != nullptr && !message->withdrawn) {
    check(
        message->content.size() == receive.data.size(),
        "rank {} sent {} bytes where {} were expected: ranks must run the same program and config",
        from, message->content.size(), receive.data.size());
  } else if (boxes_[from].gone) {
    throw PeerLost({from},
                   fmt::format("rank {} has ended without sending {} bytes that are awaited", from,
                               receive.data.size()));
  }
}

void ThreadWorld::withdraw(ThreadMessage& message) {
  std::unique_lock lock(mutex_);
  copied_.wait(lock, [&] { return !message.reading; });
  if (!message.read) {
    message.withdrawn = true;
    message.content = {};
  }
}

void ThreadWorld::withdraw(const std::shared_ptr<ThreadReceive>& receive, int to, const Key& key) {
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

void ThreadWorld::wait_for_event(int rank, double seconds) {
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

void ThreadWorld::poison(int rank, std::string_view why) {
  const std::scoped_lock lock(mutex_);
  if (!failed_) {
    failed_ = rank;
    why_ = why;
  }
  for (int r = 0; r < size(); ++r) {
    notify(r);
  }
}

void ThreadWorld::leave(int rank) {
  const std::scoped_lock lock(mutex_);
  boxes_[rank].gone = true;
  for (int r = 0; r < size(); ++r) {
    notify(r);
  }
}

int ThreadWorld::reserve_contexts(int count) {
  const std::scoped_lock lock(mutex_);
  const int first = contexts_;
  contexts_ += count;
  return first;
}

}  // namespace espalier::parallel
