#include "parallel/thread_world.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace espalier::parallel {

ThreadWorld::ThreadWorld(int ranks, size_t eager_bytes)
    : eager_bytes_(eager_bytes), boxes_(static_cast<size_t>(ranks)) {}

void ThreadWorld::notify(int rank) {
  Box& box = boxes_[rank];
  ++box.events;
  box.changed.notify_one();
}

void ThreadWorld::throw_if_poisoned() const {
  if (failed_) {
    throw PeerLost({*failed_}, fmt::format("rank {} has failed: {}", *failed_, why_));
  }
}

std::shared_ptr<ThreadMessage> ThreadWorld::send(int to, const Key& key,
                                                 std::span<const std::byte> data) {
  auto message = std::make_shared<ThreadMessage>();
  message->from = std::get<1>(key);
  const bool eager = data.size() <= eager_bytes_;
  if (eager) {
    message->copy.assign(data.begin(), data.end());
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
    channel.receives.front()->message = message;
    channel.receives.pop_front();
    if (channel.receives.empty()) {
      channels.erase(key);
    }
    notify(to);
  }
  return eager ? nullptr : message;
}

std::shared_ptr<ThreadReceive> ThreadWorld::receive(int to, const Key& key) {
  auto receive = std::make_shared<ThreadReceive>();
  const std::scoped_lock lock(mutex_);
  auto& channels = boxes_[to].channels;
  Channel& channel = channels[key];
  if (channel.messages.empty()) {
    channel.receives.push_back(receive);
  } else {
    receive->message = channel.messages.front();
    channel.messages.pop_front();
    if (channel.messages.empty()) {
      channels.erase(key);
    }
  }
  return receive;
}

bool ThreadWorld::sent(const ThreadMessage& message, int to) {
  const std::scoped_lock lock(mutex_);
  if (message.read) {
    return true;
  }
  throw_if_poisoned();
  if (boxes_[to].gone) {
    throw PeerLost({to}, fmt::format("rank {} has ended without receiving {} bytes from rank {}", to,
                                     message.content.size(), message.from));
  }
  return false;
}

bool ThreadWorld::received(ThreadReceive& receive, int from, std::span<std::byte> data) {
  std::shared_ptr<ThreadMessage> message;
  {
    const std::scoped_lock lock(mutex_);
    message = receive.message;
    if (message == nullptr || message->withdrawn) {
      throw_if_poisoned();
      if (boxes_[from].gone || message != nullptr) {
        throw PeerLost({from}, fmt::format("rank {} has ended without sending the {} bytes that "
                                           "are awaited from it",
                                           from, data.size()));
      }
      return false;
    }
    check(message->content.size() == data.size(),
          "rank {} sent {} bytes where {} were expected: ranks must run the same program and config",
          from, message->content.size(), data.size());
    message->reading = true;
  }
  if (!data.empty()) {
    std::memcpy(data.data(), message->content.data(), data.size());
  }
  const std::scoped_lock lock(mutex_);
  message->reading = false;
  message->read = true;
  notify(from);
  copied_.notify_all();
  return true;
}

void ThreadWorld::withdraw(ThreadMessage& message, int to) {
  std::unique_lock lock(mutex_);
  copied_.wait(lock, [&] { return !message.reading; });
  if (!message.read) {
    message.withdrawn = true;
    message.content = {};
    notify(to);
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
}

void ThreadWorld::wait_for_event(int rank, double seconds) {
  std::unique_lock lock(mutex_);
  Box& box = boxes_[rank];
  box.changed.wait_for(lock, std::chrono::duration<double>(seconds),
                       [&] { return box.events != box.seen; });
  // Events that come while the caller looks around must not be lost: they end its next wait at once.
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
