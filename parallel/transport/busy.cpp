#include "parallel/transport/busy.h"

#include <chrono>

namespace espalier::parallel {

Busy::Busy(Communicator& comm) : comm_(comm) {
  if (comm.begin_busy() || comm.size() == 1) {
    return;
  }
  thread_ = std::thread([this] {
    const std::chrono::duration<double> interval(comm_.timeout() / 4);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, interval, [this] { return ended_; })) {
      comm_.show_life();
    }
  });
}

Busy::~Busy() {
  if (thread_.joinable()) {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  comm_.end_busy();
}

}  // namespace espalier::parallel
