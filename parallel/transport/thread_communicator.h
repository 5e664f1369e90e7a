#pragma once
// Ranks as threads of one process: for tests, and for a program that runs alone (one rank).
//
// - Messages up to `eager_bytes` are copied when sent.
// - A larger message waits for its receiver, which copies once from the sender's buffer.
// - A rank that throws poisons the world: waits of the other ranks throw PeerLost, naming the rank
//   and its message.
// - A rank that returns counts as lost for ranks that still wait for it.
//
// So nothing hangs, unless a rank loops without communicating.
#include <functional>
#include <memory>
#include <vector>

#include "parallel/transport/communicator.h"

namespace espalier::parallel {

/// A message on its way, as a simulated network sees it.
struct Packet {
  int from = 0, to = 0;  ///< ranks of the world
  Tag tag;
  int context = 0;  ///< of the communicator: a world's parts have contexts of their own
  std::vector<std::byte> bytes;
  Trailer trailer;
};

struct ThreadOptions {
  double timeout = 120;        ///< seconds
  size_t eager_bytes = 16384;  ///< largest message that is copied at the sender
  double latency = 0;          ///< seconds until a message can be received, as on a slow network
  int ranks_a_node = 0;        ///< simulates machines with this many ranks each; 0: one machine
  /// Called repeatedly on a rank's thread while it waits: tests drive simulated devices with it.
  std::function<void()> while_waiting = {};
  /// Replaces memcpy: tests with simulated devices also copy their memory.
  std::function<void(void* to, const void* from, size_t bytes)> copy = {};
  /// Simulates a network with faults: called for each message that is sent, on the sender's thread,
  /// with several threads at once; the packets that it returns are delivered now, in this order.
  /// All messages are then copied when sent.
  std::function<std::vector<Packet>(Packet sent)> network = {};
};

/// Calls `body` on `ranks` threads and returns when all have ended; rethrows the first error.
void run_ranks(int ranks, const std::function<void(Communicator&)>& body,
               const ThreadOptions& options = {});

/// A world of one rank. A rank may send messages to itself.
std::unique_ptr<Communicator> self_communicator();

}  // namespace espalier::parallel
