#pragma once
// Callbacks that the host runs while it waits for a device queue or for a message. Each checks
// something that could keep the queue from finishing: every NCCL link, and the code that answers a
// pipeline's messages.
//
// A queue has one callback (Queue::set_wait_hook). It is `run_all`, which runs the callbacks of the
// present thread (a rank). A rank that waits for a message also runs them, because the message may
// depend on work that its device waits for. `run_all` runs every callback even if one throws, then
// rethrows the first error, so that no work of a failing run stays in a queue.
#include <functional>

#include "src/core/device.h"

namespace espalier::parallel {

class WaitHook {
 public:
  /// `queue`, a queue of the device, must outlive it.
  WaitHook(Queue& queue, std::function<void()> check);
  ~WaitHook();
  WaitHook(const WaitHook&) = delete;
  WaitHook& operator=(const WaitHook&) = delete;

  static void run_all();

 private:
  Queue& queue_;
  std::function<void()> check_;
};

}  // namespace espalier::parallel
