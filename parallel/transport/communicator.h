#pragma once
// A communicator: a group of ranks that send bytes to each other. Its users:
//
//   collectives.h            barrier, broadcast, gathers
//   reduction.h, buckets.h   sums of arrays
//
// Transport × reduction × codec are three axes: a communicator handles bytes and ranks; sums and
// codes are separate layers. Transports: mpi_communicator.h (processes), thread_communicator.h
// (threads of one process).
//
// Contract:
// - Messages match by (sender, tag) in posting order. Both ends pass the same number of bytes.
// - Sends and receives never block; `test` drives the transport.
// - The transport owns a buffer until its Request is done.
// - Every blocking wait has a timeout and throws PeerLost that names the rank. Time in which a rank
//   shows that it is alive (busy.h), or this process was stopped, does not count.
// - `sent` counts bytes at the sender, without trailers and the transport's own headers.
// - A Trailer travels with every message except those marked `whole`. Its receiver checks it: a
//   message whose bits changed, or that was lost, duplicated or reordered, throws a retryable
//   Failure that names both ranks and the message.
// - At most one thread at a time uses a communicator and all communicators split from it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/core/error.h"
#include "src/core/tensor.h"

namespace espalier::parallel {

/// Purpose of a message; sent bytes are counted per purpose.
enum class Traffic : uint8_t { allreduce, point_to_point, other };
inline constexpr int kTrafficKinds = 3;

/// Each kind of traffic has its own numbers, 0 … kTagNumbers - 1.
struct Tag {
  int number = 0;
  Traffic kind = Traffic::point_to_point;
  /// Envelope bytes of the message: counted as `other`.
  size_t envelope = 0;
  /// Sent as one message, not in parts that MPI sends eagerly. Set for device memory, where each
  /// eager part would be a copy. Its bytes are not checked: the host cannot read them.
  bool whole = false;
};
inline constexpr int kTagNumbers = 8192;
/// Elements in one message of a reduction, bytes, at most.
inline constexpr size_t kPieceBytes = size_t{256} << 10U;

struct Sent {
  int64_t bytes = 0;
  int64_t messages = 0;
};

/// A peer failed, left, or did not answer in time.
class PeerLost : public Failure {
 public:
  /// `retryable`: false if the peer failed for a reason that a retry would meet again.
  PeerLost(std::vector<int> ranks, const std::string& message, bool retryable = true)
      : Failure(message, retryable), ranks_(std::move(ranks)) {}
  /// The lost ranks, numbered as in the world.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

/// Sent behind the bytes of a message, as a part of it.
struct Trailer {
  uint64_t number = 0;  ///< 0, 1, …: of the message, among those of its sender and tag
  uint64_t hash = 0;    ///< checksum of the bytes, seeded by the number
};

struct Arrival {
  Trailer trailer;
  std::optional<size_t> wrong_size;  ///< bytes of a message that has more or fewer than expected
};

/// A message in flight, as its transport sees it.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  /// Abandons a message in flight; afterwards the transport does not touch the buffer.
  virtual ~Operation() = default;
  /// Drives the transport; true once the caller owns the buffer again.
  virtual bool test() = 0;

  /// Of a receive that is done.
  Arrival arrival;
};

/// Handle of a message; an empty handle is done. Destroying a handle that is not done abandons the
/// message; only clean-up after an error does that.
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
  // Of a receive:
  Tag tag_;
  const std::byte* data_ = nullptr;
  uint64_t number_ = 0;  ///< that the message must have
};

/// Ranks in ascending order, without duplicates.
std::vector<int> distinct(std::vector<int> ranks);

/// Result of one call of a state machine.
enum class Progress : uint8_t { done, moved, stuck };

/// Members of a communicator. Index: rank in it.
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
  /// Whether messages may lie in device memory: "yes", "no" or "unknown".
  virtual std::string takes_device_memory() const { return "no"; }

  Request isend(int to, Tag tag, std::span<const std::byte> data);
  Request irecv(int from, Tag tag, std::span<std::byte> data);
  /// Drives the transport; true once the message is complete.
  bool test(Request& request);
  /// Blocks; throws PeerLost after `timeout()` seconds.
  void wait(Request& request);
  /// Sums `data` over all ranks in place with the transport's own algorithm, in its own order;
  /// fp32, bf16 or fp16. All ranks call it in the same order. Throws Failure if the transport has
  /// no all-reduce.
  Request iall_reduce(const Tensor& data);
  /// Drives all messages in flight, without waiting. Throws PeerLost when a rank has poisoned the
  /// world.
  virtual void progress() = 0;
  /// As `progress`, for a caller that waits for something else: after PeerLost, `broken` is true.
  void check_peers();

  /// Calls `step` until it returns `done`. Throws PeerLost naming `missing()` (ranks here) after
  /// `timeout()` seconds without progress. `doing` is text for the message, as in "in the barrier".
  void wait_until(const std::function<Progress()>& step,
                  const std::function<std::vector<int>()>& missing, std::string_view doing);

  /// Throws PeerLost: these ranks (numbered here) did not answer in time while this rank was
  /// `doing`.
  [[noreturn]] void give_up(std::vector<int> ranks, std::string_view doing);
  /// Throws PeerLost with this text.
  [[noreturn]] void lose(std::vector<int> ranks, const std::string& why);

  double timeout() const { return timeout_; }
  void set_timeout(double seconds) { timeout_ = seconds; }  ///< default 120
  /// Sent by this rank so far, by this communicator and all that share its root.
  Sent sent(Traffic kind) const { return shared_->sent[static_cast<size_t>(kind)]; }
  Sent sent() const;
  /// Counts a message of this rank that another transport sent (device/nccl_link.h).
  void count(Traffic kind, size_t bytes);

  /// Whether a peer was lost. The remaining ranks then may not finish together.
  bool broken() const { return shared_->broken; }

  /// Collective: members of equal `color` form a new communicator, ordered by (key, rank). It
  /// inherits the timeout and must not outlive the root.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// The same for colors that all members know: [size()], by rank; ordered by rank.
  virtual std::unique_ptr<Communicator> split_by(std::span<const int> colors) {
    return split(colors[rank()], rank());
  }

  /// Tells the other ranks of the world that this one is alive and at work (busy.h). Any thread, if
  /// no other one uses the communicator meanwhile.
  virtual void show_life() noexcept = 0;
  /// Begin and end of a Busy. True: the transport shows life by itself meanwhile, so that Busy
  /// starts no thread (a simulation, whose time is not the system's).
  virtual bool begin_busy() { return false; }
  virtual void end_busy() noexcept {}
  /// Time (now_seconds) of another rank's last sign of life; 0: none. `progress` receives them.
  virtual double last_life() const = 0;

  /// Notifies all ranks of the world that this rank has failed and why: their waits then throw
  /// PeerLost with this text. Best effort, at most a second.
  virtual void poison(const Failure& why) noexcept = 0;
  /// Ends the world at once. MPI: ends all processes of the job with this exit code and never
  /// returns. Threads: the same as `poison`.
  virtual void abort(int code) noexcept = 0;

 protected:
  explicit Communicator(Membership members);
  /// A part of `root`: same counters and timeout.
  Communicator(Membership members, const Communicator& root);
  void set_broken() { shared_->broken = true; }

 private:
  /// Empty: the message is complete. Messages with `tag.whole` have no trailer.
  virtual std::unique_ptr<Operation> start_send(int to, Tag tag, std::span<const std::byte> data,
                                                const Trailer& trailer) = 0;
  virtual std::unique_ptr<Operation> start_receive(int from, Tag tag,
                                                   std::span<std::byte> data) = 0;
  /// Empty: the transport has no all-reduce.
  virtual std::unique_ptr<Operation> start_all_reduce(const Tensor& data);
  /// Yields the core until something may have changed; `round` counts calls since the last
  /// progress. Throws PeerLost when a rank has poisoned the world.
  virtual void idle(int round) = 0;

  /// Numbers of messages, by peer and tag.
  using Numbers = std::unordered_map<uint64_t, uint64_t>;
  static uint64_t next(Numbers& numbers, int peer, Tag tag);
  void verify(const Request& request);

  /// Shared by all communicators of this rank.
  struct Shared {
    std::array<Sent, kTrafficKinds> sent{};
    bool broken = false;
  };

  Membership members_;
  double timeout_ = 120;
  std::shared_ptr<Shared> shared_;
  Numbers sent_numbers_, received_numbers_;
};

}  // namespace espalier::parallel
