#pragma once
// Measures when each part of the flat gradient becomes final during backward; codec choice uses it
// to see how much communication backward can hide.
//
// CPU: the time of the `ready` call. Device: the time at which the host first observes the event
// recorded after the kernels, so resolution is one layer; only steps that synchronise at their end
// are measured.
#include <cstdint>
#include <vector>

#include "src/core/stream.h"

namespace espalier::train {

struct GradientTimeline {
  std::vector<int64_t> end;     ///< [n] flat elements [0, end[i]) were final …
  std::vector<double> seconds;  ///< [n] … this long after the step began
  double backward = 0;          ///< duration of backward, seconds
};

class GradientTimelineRecorder {
 public:
  /// `stream` computes gradients, and must outlive it.
  explicit GradientTimelineRecorder(Stream& stream) : stream_(stream) {}

  /// A step begins. `synchronises`: the host waits for the kernels at its end.
  void begin(bool synchronises);
  /// The kernels that compute elements [0, end) are enqueued.
  void ready(int64_t end);
  /// All kernels are enqueued. On a device waits for them if `begin` said so.
  void finish();
  /// Device: the timeline of this step, whose reductions wait for its end. CPU: of the previous
  /// step if there was one, because reductions of this step run during backward.
  const GradientTimeline& timeline() const { return before_.end.empty() ? now_ : before_; }

 private:
  void poll();

  Stream& stream_;
  bool measures_ = false;
  std::vector<Mark> marks_;    ///< of the begin, of each end, and of the end of backward
  std::vector<double> times_;  ///< [observed marks] time at which the host observed each
  GradientTimeline now_, before_;
};

}  // namespace espalier::train
