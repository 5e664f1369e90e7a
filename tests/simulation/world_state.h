#pragma once
// The state of a simulated world: turns and virtual time (world.cpp), messages (network.cpp).
#include <semaphore.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/simulation/world.h"
#include "tests/support/draw.h"

namespace espalier::simulation {

constexpr double kCallSeconds = 1e-6;  ///< the clock moves on by this in each call

enum class EventKind : uint8_t { send, receive, test, progress, write, arrive, lose, fault, end };
struct Event {
  double time = 0;
  EventKind kind = EventKind::send;
  int rank = 0;
  int peer = -1;
  uint64_t detail = 0;
};

/// A rank runs while it has the turn. (std::binary_semaphore polls before it sleeps, which costs
/// more than the simulation itself.)
class Turn {
 public:
  Turn() { sem_init(&semaphore_, 0, 0); }
  ~Turn() { sem_destroy(&semaphore_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  void give() { sem_post(&semaphore_); }
  void await() {
    while (sem_wait(&semaphore_) != 0) {  // a signal
    }
  }

 private:
  sem_t semaphore_{};
};

/// (communicator, sender, kind, number); ranks of the world.
using Key = std::tuple<int, int, int, int>;

struct Message {
  int from = 0, to = 0;
  Key key{};
  std::vector<std::byte> content{};     ///< as it arrives
  std::span<const std::byte> buffer{};  ///< of the sender, until received; empty: copied at once
  uint64_t digest = 0;                  ///< of the content as sent
  parallel::Trailer trailer{};          ///< as it arrives
  bool received = false;
  bool withdrawn = false;
};
using MessagePtr = std::shared_ptr<Message>;

struct Receive {
  std::span<std::byte> data{};
  bool done = false;
  parallel::Arrival arrival{};
};
using ReceivePtr = std::shared_ptr<Receive>;

class World {
 public:
  explicit World(const Options& options)
      : options_(options),
        draw_(mix(options.seed, 1)),
        turn_odds_(draw_.of<uint64_t>({1, 2, 8, 64})),
        latency_(draw_.of<double>({1e-6, 1e-4, 1e-3})),
        eager_bytes_(draw_.of<size_t>({0, 64, 1024, size_t{1} << 30U})),
        happened_(options.faults.size(), false) {
    for (int r = 0; r < options.ranks; ++r) {
      ranks_.emplace_back();
    }
  }

  void start() { give_turn(pick()); }
  void wait();
  void run(int rank, const std::function<void(parallel::Communicator&)>& body);
  Report report();

  // Calls of the rank that has the turn.
  MessagePtr send(int to, const Key& key, std::span<const std::byte> data,
                  const parallel::Trailer& trailer);
  ReceivePtr receive(int rank, const Key& key, std::span<std::byte> data);
  bool sent(const MessagePtr& message);
  bool received(int rank, const ReceivePtr& receive, const Key& key);
  void withdraw(const MessagePtr& message);
  void withdraw(int rank, const ReceivePtr& receive, const Key& key);
  void progress(int rank);
  void idle(int rank, double timeout);
  void poison(int rank, const Failure& why);
  void show_life(int rank);
  double last_life(int rank) const { return ranks_[rank].last_life; }
  void begin_busy(int rank, double timeout);
  void end_busy(int rank) { --ranks_[rank].busy; }
  /// Before a rank reads or changes a file. Returns the errno with which it must fail; 0: none.
  /// `fills`: the change needs space. Does not throw, because C code may call it.
  int disk(int rank, Target target, bool fills);
  bool finds_file(int rank, const std::string& path, bool creates);
  void end_of_start(int rank) { ranks_[rank].start = ranks_[rank].counts; }
  bool stop_requested(int rank) const { return ranks_[rank].stop; }
  /// Time also passes in loops that only look at the clock.
  double now() { return now_ += kCallSeconds * static_cast<double>(draw_.between(1, 9)); }
  int reserve_contexts(int count) { return std::exchange(contexts_, contexts_ + count); }

 private:
  struct Channel {
    std::deque<MessagePtr> messages;
    std::deque<ReceivePtr> receives;
  };
  enum class State : uint8_t { ready, sleeping, ended };
  struct Rank {
    Turn turn;
    State state = State::ready;
    double until = 0;    ///< sleeping
    bool wakes = false;  ///< an event ends the sleep
    bool event = false;  ///< since the last sleep
    bool dead = false;
    bool stop = false;
    int busy = 0;
    double busy_interval = 0, next_life = 0;  ///< of the signs of life that a Busy gives
    bool life = false;                        ///< a sign of life has arrived, but was not looked at
    double last_life = 0;
    std::optional<parallel::PeerLost> notice;
    std::set<int> gone;  ///< ranks known to have ended
    std::map<Key, Channel> channels;
    Counts counts, start;
    Ending ending;
  };
  /// Something that happens at a time, in the order of the calls of `at` for equal times.
  struct Later {
    double time;
    uint64_t order;
    std::function<void()> action;
    bool operator<(const Later& other) const {
      return std::tie(other.time, other.order) < std::tie(time, order);
    }
  };

  void call(int rank, EventKind kind, int peer = -1, uint64_t detail = 0);
  void record(EventKind kind, int rank, int peer = -1, uint64_t detail = 0);
  void check_faults(int rank);
  void happen(const Fault& fault);
  const Fault* message_fault(int from);
  void note_fault(const Fault& fault, double end);
  void at(double time, std::function<void()> action);
  void deliver();
  void arrive(const MessagePtr& message);
  void match(Message& message, Receive& receive);
  void sleep(int rank, double until, bool wakes);
  void pass_turn(int rank);
  int pick();
  void give_turn(int rank);
  void notify(int rank) { ranks_[rank].event = true; }
  void tell_gone(int rank);
  void hang();
  int machine_of(int rank) const {
    return options_.ranks_a_node > 0 ? rank / options_.ranks_a_node : 0;
  }
  double some_latency() { return latency_ * static_cast<double>(1 + draw_.between(0, 9)); }

  const Options options_;
  testing::Draw draw_;
  const uint64_t turn_odds_;
  const double latency_;
  const size_t eager_bytes_;
  std::deque<Rank> ranks_;
  double now_ = 1;
  int64_t calls_ = 0;
  int contexts_ = 1;
  bool hung_ = false;
  std::priority_queue<Later> later_;
  uint64_t order_ = 0;
  std::map<std::pair<int, Key>, double> last_arrival_;       ///< by receiver and key
  std::map<std::pair<int, int>, double> last_arrival_pair_;  ///< by sender and receiver
  std::set<std::pair<int, int>> cut_;
  std::set<std::pair<int, std::string>> files_;  ///< of other machines in local_folder
  std::vector<bool> happened_;
  double fault_end_ = 0;
  std::vector<int> fault_ranks_;
  std::vector<std::string> faults_, violations_, waits_;
  std::deque<Event> recent_;
  uint64_t log_ = 0;

  std::mutex mutex_;  ///< of `all_ended_`
  std::condition_variable changed_;
  bool all_ended_ = false;
};

/// The communicator of a rank that has the turn.
std::unique_ptr<parallel::Communicator> make_communicator(World& world,
                                                          parallel::Membership members);

}  // namespace espalier::simulation
