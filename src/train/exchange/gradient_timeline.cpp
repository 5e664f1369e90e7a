#include "src/train/exchange/gradient_timeline.h"

#include <utility>

#include "src/core/trace.h"

namespace espalier::train {

void ReadinessClock::begin(bool waits) {
  const bool on_device = stream_.queue() != nullptr;
  watches_ = waits || !on_device;
  before_ = on_device ? Readiness() : std::exchange(now_, {});
  now_ = {};
  marks_.clear();
  times_.clear();
  if (watches_) {
    marks_.push_back(stream_.mark());
    look();
  }
}

void ReadinessClock::ready(int64_t end) {
  if (watches_) {
    now_.ends.push_back(end);
    marks_.push_back(stream_.mark());
    look();
  }
}

void ReadinessClock::finish() {
  if (!watches_) {
    return;
  }
  marks_.push_back(stream_.mark());
  while (times_.size() < marks_.size()) {
    stream_.wait(marks_[times_.size()]);
    times_.push_back(now_seconds());
  }
  for (size_t i = 0; i < now_.ends.size(); ++i) {
    now_.ready.push_back(times_[i + 1] - times_[0]);
  }
  now_.backward = times_.back() - times_[0];
}

void ReadinessClock::look() {
  while (times_.size() < marks_.size() && stream_.passed(marks_[times_.size()])) {
    times_.push_back(now_seconds());
  }
}

}  // namespace espalier::train
