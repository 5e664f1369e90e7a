#pragma once
// Work that may take longer than the timeout of other ranks' waits, such as writing to a slow disk.
//
// While a Busy lives, a thread tells the other ranks four times per timeout that this rank is
// alive; their waits then last as long as it does. A process that is stopped or dead sends nothing,
// so its peers notice it after the timeout. The first sign is sent after a quarter of the timeout:
// short work costs a thread's start, some 20 microseconds.
#include <condition_variable>
#include <mutex>
#include <thread>

#include "parallel/transport/communicator.h"

namespace espalier::parallel {

class Busy {
 public:
  /// No thread may use `comm`, or one split from the same root, while this lives.
  explicit Busy(Communicator& comm);
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Communicator& comm_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;  ///< not started for one rank, or if the transport shows life by itself
};

}  // namespace espalier::parallel
