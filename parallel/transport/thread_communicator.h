#pragma once
// Ranks as threads of one process: for tests, and for a program that runs alone (one rank).
//
// Messages up to `eager_bytes` are copied when sent; larger ones wait for the receiver, who copies
// once from the sender's buffer. A rank that throws poisons the world: the others leave what they
// wait for with PeerLost, naming it and its message. A rank that returns counts as gone for those
// who still wait for it. So nothing hangs, unless a rank loops without communicating.
#include <functional>
#include <memory>

#include "parallel/transport/communicator.h"

namespace espalier::parallel {

struct ThreadOptions {
  double timeout = 120;        ///< seconds
  size_t eager_bytes = 16384;  ///< largest message that is copied at the sender
  double latency = 0;          ///< seconds until a message can be received, as on a slow network
  int ranks_a_node = 0;        ///< as if so many lived on each machine; 0: all on one
  /// Called on a rank's thread, again and again, while it waits: tests drive devices that are not
  /// there.
  std::function<void()> while_waiting = {};
  /// In place of memcpy: tests with devices that are not there take their memory, too.
  std::function<void(void* to, const void* from, size_t bytes)> copy = {};
};

/// Calls `body` on `ranks` threads and returns when all have ended; rethrows the first error.
void run_ranks(int ranks, const std::function<void(Communicator&)>& body,
               const ThreadOptions& options = {});

/// The only rank of its world. Messages to itself work.
std::unique_ptr<Communicator> self_communicator();

}  // namespace espalier::parallel
