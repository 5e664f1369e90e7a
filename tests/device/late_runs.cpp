#include "tests/device/late_runs.h"

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
  std::string notes;
  const train::TrainerOptions options{.stop_after = 1};
  run(config, ranks, notes, device ? late_options(options) : options);
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

void expect_planned_exactly(const io::Config& config, const kernels::Kernels& table) {
  on_ranks(1, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "none", .kernels = &table});
    trainer.run();
    const train::MemoryPlan& plan = trainer.fit().plan;
    for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
      EXPECT_EQ(trainer.arena().at_peak(static_cast<Memory>(kind)), plan.peak.at(kind))
          << name_of(static_cast<Memory>(kind));
    }
    EXPECT_EQ(trainer.arena().total().peak, plan.needed());
  });
}

}  // namespace espalier::testing
