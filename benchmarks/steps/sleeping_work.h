#pragma once
// Stages that sleep instead of computing. Any number of ranks fits any machine, and only the
// communication between stages is measured.
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "parallel/pipeline/runner.h"
#include "src/core/trace.h"

namespace espalier::parallel {

class SleepingWork final : public PipelineWork {
 public:
  /// Seconds of each stage.
  explicit SleepingWork(std::vector<StageTimes> stages) : stages_(std::move(stages)) {}

  Mark run(const Action& action, std::span<const std::byte>, std::span<std::byte> out) override {
    const double begin = now_seconds();
    if (!out.empty()) {
      std::memset(out.data(), action.micro_batch, out.size());
    }
    if (!computes(action.kind)) {
      return 0;
    }
    const StageTimes& times = stages_[static_cast<size_t>(action.stage)];
    const double seconds = action.kind == ActionKind::forward          ? times.forward
                           : action.kind == ActionKind::backward       ? times.backward()
                           : action.kind == ActionKind::backward_input ? times.backward_input
                                                                       : times.backward_weight;
    constexpr double kWakeUp = 2e-4;  // margin for a late wake-up from sleep, seconds
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds - kWakeUp));
    while (now_seconds() - begin < seconds) {
      std::this_thread::yield();
    }
    return 0;
  }

 private:
  std::vector<StageTimes> stages_;
};

}  // namespace espalier::parallel
