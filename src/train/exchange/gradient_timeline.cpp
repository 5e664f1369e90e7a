#include "src/train/exchange/gradient_timeline.h"

#include <utility>

#include "src/core/trace.h"

namespace espalier::train {

void GradientTimelineRecorder::begin(bool synchronises) {
  const bool on_device = stream_.queue() != nullptr;
  measures_ = synchronises || !on_device;
  before_ = on_device ? GradientTimeline() : std::exchange(now_, {});
  now_ = {};
  marks_.clear();
  times_.clear();
  if (measures_) {
    marks_.push_back(stream_.mark());
    poll();
  }
}

void GradientTimelineRecorder::ready(int64_t end) {
  if (measures_) {
    now_.end.push_back(end);
    marks_.push_back(stream_.mark());
    poll();
  }
}

void GradientTimelineRecorder::finish() {
  if (!measures_) {
    return;
  }
  marks_.push_back(stream_.mark());
  while (times_.size() < marks_.size()) {
    stream_.wait(marks_[times_.size()]);
    times_.push_back(now_seconds());
  }
  for (size_t i = 0; i < now_.end.size(); ++i) {
    now_.seconds.push_back(times_[i + 1] - times_[0]);
  }
  now_.backward = times_.back() - times_[0];
}

void GradientTimelineRecorder::poll() {
  while (times_.size() < marks_.size() && stream_.passed(marks_[times_.size()])) {
    times_.push_back(now_seconds());
  }
}

}  // namespace espalier::train
