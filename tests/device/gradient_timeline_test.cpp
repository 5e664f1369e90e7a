// The time at which gradients of a step are final: on a device when its kernels are done, not when
// they are enqueued. Only steps that wait anyway wait for it.
#include "src/train/exchange/gradient_timeline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "tests/simt/queue.h"

namespace espalier::gradient_timeline_test {
namespace {

/// A queue whose tasks end at given times.
struct Slow {
  simt::Queue queue;
  Arena arena;
  Stream stream{arena, 1, &queue};
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  void until(int milliseconds) {
    queue.enqueue_until([end = begin + std::chrono::milliseconds(milliseconds)] {
      return std::chrono::steady_clock::now() > end;
    });
  }
};

/// Gradients final 200 and 400 ms after the step's begin; the last kernel ends after 600 ms.
train::GradientTimeline watched() {
  Slow slow;
  train::GradientTimelineRecorder recorder(slow.stream);
  slow.until(100);  // the step before
  recorder.begin(true);
  for (const int i : {1, 2}) {
    slow.until(100 + 200 * i);
    recorder.ready(10 * i);
  }
  EXPECT_EQ(slow.queue.waited() + slow.queue.synchronized(), 0) << "no host wait in between";
  slow.until(700);
  recorder.finish();
  return recorder.timeline();
}

/// Other load on the machine may delay a poll of the host, but not in every trial.
TEST(GradientTimeline, OnADeviceIsWhenKernelsAreDone) {
  const auto near = [](double seconds, double right) { return std::fabs(seconds - right) < 0.1; };
  bool right = false;
  for (int attempt = 0; attempt < 5 && !right; ++attempt) {
    const train::GradientTimeline found = watched();
    ASSERT_EQ(found.end, (std::vector<int64_t>{10, 20}));
    right = near(found.seconds.at(0), 0.2) && near(found.seconds.at(1), 0.4) &&
            near(found.backward, 0.6);
  }
  EXPECT_TRUE(right);
}

TEST(GradientTimeline, OnADeviceIsNotAwaitedInOtherSteps) {
  Slow slow;
  train::GradientTimelineRecorder recorder(slow.stream);
  recorder.begin(false);
  slow.until(500);
  recorder.ready(10);
  recorder.finish();
  EXPECT_EQ(slow.queue.waited() + slow.queue.synchronized(), 0);
  EXPECT_TRUE(recorder.timeline().end.empty());
}

/// The sums of the step before, if any, are in progress.
TEST(GradientTimeline, OnTheCpuIsThatOfTheStepBefore) {
  Arena arena;
  Stream stream(arena, 1);
  train::GradientTimelineRecorder recorder(stream);
  for (const int64_t step : {1, 2, 3}) {
    recorder.begin(step == 3);
    recorder.ready(step);
    recorder.finish();
    EXPECT_EQ(recorder.timeline().end, (std::vector<int64_t>{step == 1 ? 1 : step - 1}));
    EXPECT_GE(recorder.timeline().backward, recorder.timeline().seconds.at(0));
  }
}

}  // namespace
}  // namespace espalier::gradient_timeline_test
