#include "src/core/device.h"

#include "src/core/trace.h"

namespace espalier {
namespace {

class HostTime final : public TimePoint {
 public:
  double seconds_since(const TimePoint& earlier) const override {
    return seconds_ - dynamic_cast<const HostTime&>(earlier).seconds_;
  }

 private:
  double seconds_ = now_seconds();
};

}  // namespace

std::unique_ptr<TimePoint> Queue::time_point() {
  synchronize();
  return std::make_unique<HostTime>();
}

std::unique_ptr<TimePoint> time_point(Queue* queue) {
  return queue != nullptr ? queue->time_point() : std::make_unique<HostTime>();
}

}  // namespace espalier
