#pragma once
// Whole runs on pretended devices (late_table.h): their ranks, their outcomes and memory, and what
// they report.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/metrics_lines.h"
#include "tests/support/settings.h"

namespace espalier::testing {

/// During its lifetime the devices of ranks advance while their hosts wait for messages.
struct DrivenDevices {
  DrivenDevices() { while_ranks_wait() = simt::drive_queues; }
  ~DrivenDevices() {
    while_ranks_wait() = {};
    copy_of_ranks() = {};
  }
};

/// The same, with NCCL between the devices.
struct LinkedDevices {
  FakeNccl nccl;
  DrivenDevices driven;
  LinkedDevices() { nccl.connect(true); }
};

inline const std::vector<std::string>& late_dtypes() {
  static const std::vector<std::string> all{"fp32", "bf16"};
  return all;
}

/// Calls body(config, ranks) for each way, with element types in turn: each way once, each type
/// with every kind of way. Tests of random runs combine them freely (random_runs_test.cpp).
template <class Body>
void for_ways(const std::vector<RanksWay>& ways, int64_t steps, const Body& body,
              const std::vector<std::string>& dtypes = late_dtypes()) {
  for (size_t i = 0; i < ways.size(); ++i) {
    const TempDir dir;
    io::Config config = tiny_config(dir);
    take_type(config, dtypes[i % dtypes.size()]);
    config.train.steps = steps;
    apply_settings(config, ways[i].settings);
    SCOPED_TRACE(fmt::format("\"{}\" in {}", ways[i].settings, dtypes[i % dtypes.size()]));
    body(config, ways[i].ranks);
  }
}

inline train::TrainerOptions late_options(train::TrainerOptions options = {}) {
  options.kernels = &late_table();
  options.resume = options.resume.empty() ? "none" : options.resume;
  return options;
}

inline Outcome run_late(const io::Config& config, int ranks = 1,
                        const train::TrainerOptions& options = {}) {
  return run(config, ranks, late_options(options));
}

inline void on_ranks(int ranks, const std::function<void(parallel::Communicator&)>& body) {
  parallel::run_ranks(
      ranks, body, {.timeout = 60, .while_waiting = while_ranks_wait(), .copy = copy_of_ranks()});
}

/// Trains on devices; calls after(trainer, comm) on each rank.
template <class After>
void train_late(const io::Config& config, int ranks, const After& after,
                const train::TrainerOptions& options = {}) {
  on_ranks(ranks, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, late_options(options));
    trainer.run();
    after(trainer, comm);
  });
}

/// All notes of a run of one step.
inline std::string notes_of(const io::Config& config, int ranks = 2, bool device = true) {
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

/// Bytes of messages in the device's memory at their peak; expects them as planned, exactly or at
/// most. The host's are at most the planned ones and copies of inputs and losses of micro-batches.
inline size_t expect_planned_messages(train::Trainer& trainer, bool exactly = true) {
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
