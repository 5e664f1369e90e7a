#pragma once
// State shared by the ranks of one thread world: one mailbox a rank. Only thread_communicator.cpp
// uses it.
//
// Matching: the later of a message and a receive binds the two, in posting order within one
// (context, sender, tag). The receiver's thread then copies, outside the lock, whenever it drives
// any request. So "send, then receive, then wait for both" never deadlocks, in either order of the
// waits. One mutex guards all bookkeeping.
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/transport/thread_communicator.h"

namespace espalier::parallel {

struct ThreadMessage {
  int from = 0;
  double arrival = 0;                  ///< seconds; the receiver may not read earlier
  std::vector<std::byte> copy;         ///< of an eager message
  std::span<const std::byte> content;  ///< of `copy` or the sender's buffer
  bool reading = false;                ///< the receiver is copying
  bool read = false;
  bool withdrawn = false;  ///< the sender abandoned it
};

struct ThreadReceive {
  std::span<std::byte> data;
  std::shared_ptr<ThreadMessage> message;  ///< once bound
  bool done = false;                       ///< only the receiver's thread accesses it
};

class ThreadWorld {
 public:
  /// (context, sender, kind, number); ranks of the world.
  using Key = std::tuple<int, int, int, int>;

  ThreadWorld(int ranks, const ThreadOptions& options);

  int size() const { return static_cast<int>(boxes_.size()); }
  /// Whether messages may lie in any memory: true if `options.copy` is set.
  bool copies_anything() const { return static_cast<bool>(options_.copy); }
  /// Copies small messages; these complete at once, and the result is null.
  std::shared_ptr<ThreadMessage> send(int to, const Key& key, std::span<const std::byte> data);
  std::shared_ptr<ThreadReceive> receive(int to, const Key& key, std::span<std::byte> data);

  /// Throws PeerLost when a rank has failed.
  void throw_if_poisoned();
  /// Copies the messages that have arrived for `rank`; called on that rank's thread.
  void progress(int rank);

  /// Whether the message has been read; throws PeerLost when it never will be.
  bool sent(const ThreadMessage& message, int to);
  /// Throws PeerLost or Failure when the receive can never complete.
  void check_receive(const ThreadReceive& receive, int from);
  void withdraw(ThreadMessage& message);
  void withdraw(const std::shared_ptr<ThreadReceive>& receive, int to, const Key& key);

  /// Waits, for at most `seconds`, until an event for `rank` since its last call. The wait is
  /// shorter with `while_waiting`, or when a bound message arrives earlier.
  void wait_for_event(int rank, double seconds);
  void poison(int rank, std::string_view why);
  void leave(int rank);
  /// Reserves new context numbers, for `split`.
  int reserve_contexts(int count);

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

  void bind(int to, std::shared_ptr<ThreadReceive> receive, std::shared_ptr<ThreadMessage> message);
  std::shared_ptr<ThreadReceive> next_bound(Box& box) const;
  void notify(int rank);
  void throw_poison() const;
  void copy(std::span<const std::byte> from, std::byte* to) const;

  std::mutex mutex_;
  std::condition_variable copied_;
  ThreadOptions options_;
  std::deque<Box> boxes_;
  int contexts_ = 1;
  std::optional<int> failed_;
  std::string why_;
};

}  // namespace espalier::parallel
