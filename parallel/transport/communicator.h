#pragma once
// A communicator: a group of ranks that move bytes to each other. This is the contents page of the
// layer; what is built on it: collectives.h (barrier, broadcast, gathers), reduction.h, bucketer.h.
//
// Transport × reduction × codec are three axes: a communicator knows bytes and ranks, neither sums
// nor bits. Transports: mpi_communicator.h (processes), thread_communicator.h (threads of one
// process).
//
// Messages are matched by (sender, tag) in the order in which they were posted; both ends must name
// the same number of bytes. Sends and receives never block; `test` drives the transport. A buffer
// belongs to the transport until its Request is done. Every blocking wait has a timeout and throws
// PeerLost that names the rank. Sent bytes are counted here, where they are sent. One thread at a
// time may use a communicator and all those split from it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/error.h"
#include "src/core/tensor.h"

namespace espalier::parallel {

/// What a message is for; sent bytes are counted apart.
enum class Traffic : uint8_t { allreduce, point_to_point, other };
inline constexpr int kTrafficKinds = 3;

/// Each kind of traffic has its own numbers, 0 … kTagNumbers - 1.
struct Tag {
  int number = 0;
  Traffic kind = Traffic::point_to_point;
  /// Bytes of the message that are about it, not of it: counted as `other`.
  size_t envelope = 0;
  /// Not in parts that may leave at once: memory of a device, of which each would be a copy.
  bool whole = false;
};
inline constexpr int kTagNumbers = 8192;

struct Sent {
  int64_t bytes = 0;
  int64_t messages = 0;
};

/// A peer failed, left, or did not answer in time.
class PeerLost : public Failure {
 public:
  PeerLost(std::vector<int> ranks, const std::string& message)
      : Failure(message), ranks_(std::move(ranks)) {}
  /// The ranks that are missing, as numbered in the world.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

/// One message under way, as its transport sees it.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  /// Under way: abandons the message; afterwards nobody touches the buffer.
  virtual ~Operation() = default;
  /// Drives the transport; true once the buffer may be used again.
  virtual bool test() = 0;
};

/// Handle of a message; an empty one is done. Dropping one that is not done abandons the message,
/// which is meant for leaving after an error.
class Request {
 public:
  Request() = default;
  bool done() const { return operation_ == nullptr; }
  int peer() const { return peer_; }  ///< the rank at the other end

 private:
  friend class Communicator;
  std::unique_ptr<Operation> operation_;
  int peer_ = 0;
  size_t bytes_ = 0;
  bool sends_ = false;
};

/// What one call of a state machine achieved.
enum class Progress : uint8_t { done, moved, stuck };

/// Who belongs to a communicator. Index: rank in it.
struct Membership {
  int rank = 0;            ///< of this member
  std::vector<int> world;  ///< rank in the world
  std::vector<int> node;   ///< number of the machine, counted from 0 in order of appearance
};

class Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  int rank() const { return members_.rank; }
  int size() const { return static_cast<int>(members_.world.size()); }
  const Membership& members() const { return members_; }
  /// Among the members on this machine (for choosing threads and devices).
  int local_rank() const;
  int local_size() const;
  virtual std::string_view name() const = 0;  ///< of the transport: "mpi", "threads"
  /// Whether messages may lie in the memory of a device: "yes", "no" or "unknown".
  virtual std::string takes_device_memory() const { return "no"; }

  Request isend(int to, Tag tag, std::span<const std::byte> data);
  Request irecv(int from, Tag tag, std::span<std::byte> data);
  /// Drives the transport; true once the message is through.
  bool test(Request& request);
  /// Blocks; throws PeerLost after `timeout()` seconds.
  void wait(Request& request);
  /// The sum of `data` over all ranks in place, by the transport itself, in an order of its own;
  /// fp32, bf16 or fp16. All ranks call it in the same order. Throws Failure when the transport has none.
  Request iall_reduce(const Tensor& data);
  /// Drives whatever is under way, without waiting. Throws PeerLost when a rank has poisoned the
  /// world.
  virtual void progress() = 0;
  /// The same for whoever waits for something else meanwhile: `broken` afterwards tells of a lost
  /// peer.
  void check_peers();

  /// Calls `step` until it says `done`. Throws PeerLost naming `missing()` (ranks here) when it was
  /// stuck for `timeout()` seconds. `doing` is text for the message, as in "in the barrier".
  void wait_until(const std::function<Progress()>& step,
                  const std::function<std::vector<int>()>& missing, std::string_view doing);

  /// Throws PeerLost: these ranks (numbered here) did not answer in time while this one was
  /// `doing`.
  [[noreturn]] void give_up(std::vector<int> ranks, std::string_view doing);
  /// Throws PeerLost with this text.
  [[noreturn]] void lose(std::vector<int> ranks, const std::string& why);

  double timeout() const { return timeout_; }
  void set_timeout(double seconds) { timeout_ = seconds; }  ///< default 120
  /// Sent by this rank so far, by this communicator and all that share its root.
  Sent sent(Traffic kind) const { return shared_->sent[static_cast<size_t>(kind)]; }
  Sent sent() const;
  /// A message of this rank that went another way (device/nccl_link.h).
  void count(Traffic kind, size_t bytes);

  /// Whether a peer was lost; the others can then no longer be relied on to come to the end
  /// together.
  bool broken() const { return shared_->broken; }

  /// Collective: members of equal `color` form a new communicator, ordered by (key, rank). It
  /// inherits the timeout and must not outlive the root.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Tells all ranks of the world that this one has failed and why: what they wait for then throws
  /// PeerLost with this text. Best effort, at most a second.
  virtual void poison(std::string_view why) noexcept = 0;
  /// Ends the world at once: under MPI all processes of the job, with this exit code (never
  /// returns); among threads the same as `poison`.
  virtual void abort(int code) noexcept = 0;

 protected:
  explicit Communicator(Membership members);
  /// As a part of `root`: same counters and timeout.
  Communicator(Membership members, const Communicator& root);
  void set_broken() { shared_->broken = true; }

 private:
  virtual std::unique_ptr<Operation> start_send(int to, Tag tag,
                                                std::span<const std::byte> data) = 0;
  virtual std::unique_ptr<Operation> start_receive(int from, Tag tag,
                                                   std::span<std::byte> data) = 0;
  /// Empty: there is none.
  virtual std::unique_ptr<Operation> start_all_reduce(const Tensor& data);
  /// Gives the core to others until something may have changed; `round` counts calls since the last
  /// progress. Throws PeerLost when a rank has poisoned the world.
  virtual void idle(int round) = 0;

  /// By all communicators of this rank.
  struct Shared {
    std::array<Sent, kTrafficKinds> sent{};
    bool broken = false;
  };

  Membership members_;
  double timeout_ = 120;
  std::shared_ptr<Shared> shared_;
};

}  // namespace espalier::parallel
