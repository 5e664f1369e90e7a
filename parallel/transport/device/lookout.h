#pragma once
// Callbacks that the host runs while it waits for a device queue or for a message. Each checks
// something that could keep the queue from finishing: every NCCL link, and the code that answers a
// pipeline's messages.
//
// A queue has one callback (Queue::set_lookout). It is `look_all`, which runs the callbacks of the
// present thread (a rank). A rank that waits for a message also runs them, because the message may
// depend on work that its device waits for. `look_all` runs every callback even if one throws, then
// rethrows the first error, so that no work of a failing run stays in a queue.
#include <functional>

#include "src/core/device.h"

namespace espalier::parallel {

class Lookout {
 public:
  /// `queue`, a queue of the device, must outlive it.
  Lookout(Queue& queue, std::function<void()> look);
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  static void look_all();

 private:
  Queue& queue_;
  std::function<void()> look_;
};

}  // namespace espalier::parallel
