#pragma once
// A simulated world of ranks with a virtual clock and a faulty network, all determined by a seed.
//
// Ranks are threads, and exactly one of them runs at a time. At each call of the transport and each
// change of a file the world may pass the turn to another rank that a generator draws. Messages
// arrive at virtual times. When all ranks wait, the clock moves on to the next arrival or the end
// of the shortest wait: a timeout costs no real time. now_seconds() of a rank is the virtual time.
//
//   Report report = simulate({.seed = 7, .ranks = 3, .faults = {…}}, [](Communicator& comm) { … });
//
// The order of events is a pure function of the options and the body: Report::log is equal in two
// calls. Messages of one (sender, receiver, communicator, tag) arrive in order, as in MPI.
//
// The body must not wait for another rank by any other means than the communicator, and must not
// use the transport in other threads. Files of other threads than ranks meet no faults.
#include <functional>
#include <string>
#include <vector>

#include "parallel/transport/communicator.h"

namespace espalier::simulation {

enum class FaultKind : uint8_t {
  delay,       ///< a message arrives `seconds` later, and so do those behind it
  cut,         ///< a message and all later ones from this rank to the same rank are lost
  stall,       ///< a rank stands still
  suspend,     ///< all ranks stand still
  kill,        ///< a rank ends; the others hear nothing
  close,       ///< a rank ends; the others notice it when they wait for it
  stop,        ///< from here on stop_requested() is true on this rank
  drop,        ///< one message is lost
  duplicate,   ///< one message arrives twice
  flip,        ///< one bit of a message is inverted
  slow_write,  ///< a change of a file takes `seconds`
  full_disk,   ///< a change of a file fails: no space is left
  bad_write,   ///< a change of a file fails: input/output error
  kill_write,  ///< a rank ends before it changes a file; the others hear nothing
  slow_read,   ///< a read takes `seconds`
  bad_read,    ///< a read fails: input/output error
};
inline constexpr int kFaultKinds = 16;
std::string_view name_of(FaultKind kind);
/// The operations that faults strike; `Fault::at` counts those of its rank, from 1. write: any
/// change of a file or folder; read: also the opening of a file to read.
enum class Target : uint8_t { call, send, write, read };
Target target_of(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::delay;
  int rank = 0;
  int64_t at = 1;
  double seconds = 0;
  uint64_t bit = 0;  ///< of a flip, modulo the bits of the message
};
std::string describe(const Fault& fault);

struct Options {
  uint64_t seed = 1;
  int ranks = 2;
  int ranks_a_node = 0;  ///< 0: one machine
  std::vector<Fault> faults{};
  double disk_seconds = 0;  ///< of each read and each change of a file
  /// A folder of rank 0's machine: ranks of other machines find there only files that they made.
  /// Empty: all machines share all folders.
  std::string local_folder{};
  /// Whether the notice of a failed rank (Communicator::poison) reaches the others.
  bool notices_arrive = true;
  /// A run beyond these is a hang.
  double most_seconds = 1e6;
  int64_t most_calls = 10'000'000;
};

/// How the body of a rank ended.
struct Ending {
  enum class Kind : uint8_t { returned, failure, killed, bug, hung };
  Kind kind = Kind::returned;
  std::string message{};
  std::vector<int> lost{};  ///< ranks named by PeerLost
  bool retryable = false;   ///< of a failure
  double time = 0;
};
std::string_view name_of(Ending::Kind kind);

/// How often a rank did what faults meet.
struct Counts {
  int64_t calls = 0;  ///< of the transport
  int64_t sends = 0;
  int64_t writes = 0;
  int64_t reads = 0;
};
int64_t count_of(const Counts& counts, Target target);

struct Report {
  std::vector<Ending> endings{};  ///< [ranks]
  std::vector<Counts> counts{};   ///< [ranks]
  std::vector<Counts> start{};    ///< [ranks] until end_of_start; of other ranks zeros
  uint64_t log = 0;               ///< hash of all events with their times and contents
  double end = 0;
  /// The last fault that happened ended at this time; 0: none happened.
  double fault_end = 0;
  std::vector<std::string> faults{};  ///< those that happened, in order
  std::vector<int> fault_ranks{};     ///< their ranks
  /// What no rank may do: change a message while it is sent; use a file outside of a Busy, where a
  /// slow disk would lose it.
  std::vector<std::string> violations{};
  std::vector<std::string> waits{};   ///< of a hang: for each rank, what it waits for
  std::vector<std::string> recent{};  ///< the last events
};

/// Calls `body` on simulated ranks until all have ended. A rank that throws Failure sends its
/// reason to the others, as the ranks of a job do.
Report simulate(const Options& options, const std::function<void(parallel::Communicator&)>& body);

/// Whether a `stop` fault has happened on the calling rank.
bool stop_requested();

/// The start of the calling rank's body has ended (Report::start).
void end_of_start();

}  // namespace espalier::simulation
