#pragma once
// While the host waits for a queue of its device, several want to look after what may keep it from
// coming: each link of NCCL, and who answers the messages of a pipeline. A device asks one function
// (Queue::set_lookout); this one asks all that the present thread, a rank, has set up. So does a
// rank that waits for a message, which may depend on what its device waits for. Each is asked even
// if one before it throws, so that nothing of a run that ends is left in a queue.
#include <functional>

#include "src/core/device.h"

namespace espalier::parallel {

class Lookout {
 public:
  /// `queue`, one of the device, must outlive it.
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
