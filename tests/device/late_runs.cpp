#include "tests/device/late_runs.h"

#include <mutex>

namespace espalier::testing {

train::TrainerOptions late_options(train::TrainerOptions options) {
  options.kernels = &late_table();
  options.resume = options.resume.empty() ? "none" : options.resume;
  return options;
}

Outcome run_late(const io::Config& config, int ranks, const train::TrainerOptions& options) {
  return run(config, ranks, late_options(options));
}

void on_ranks(int ranks, const std::function<void(parallel::Communicator&)>& body) {
  parallel::run_ranks(
      ranks, body, {.timeout = 60, .while_waiting = while_ranks_wait(), .copy = copy_of_ranks()});
}

std::string notes_of(const io::Config& config, int ranks, bool device) {
  std::mutex mutex;
  std::string notes;
  train::TrainerOptions options{.stop_after = 1};
  options.on_note = [&](const std::string& note) {
    const std::scoped_lock lock(mutex);
    notes += note + "\n";
  };
  device ? run_late(config, ranks, options) : run(config, ranks, options);
  return notes;
}

size_t expect_planned_messages(train::Trainer& trainer, bool exactly) {
  constexpr auto kMessages = static_cast<size_t>(Memory::communication);
  constexpr size_t kCopies = 8192;
  const train::MemoryPlan& plan = trainer.fit().plan;
  const size_t used = trainer.arena().use(Memory::communication).peak;
  EXPECT_LE(used, plan.peak.at(kMessages));
  EXPECT_TRUE(!exactly || used == plan.peak.at(kMessages))
      << used << " of " << plan.peak.at(kMessages);
  EXPECT_LT(trainer.arena().host().use(Memory::communication).peak,
            plan.pinned.at(kMessages) + kCopies);
  return used;
}

}  // namespace espalier::testing
