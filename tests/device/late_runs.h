#pragma once
// Whole runs on simulated devices (late_table.h): their ranks, their outcomes and memory, and what
// they report.
#include <gtest/gtest.h>

#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

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

train::TrainerOptions late_options(train::TrainerOptions options = {});

Outcome run_late(const io::Config& config, int ranks = 1,
                 const train::TrainerOptions& options = {});

void on_ranks(int ranks, const std::function<void(parallel::Communicator&)>& body);

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
std::string notes_of(const io::Config& config, int ranks = 2, bool device = true);

/// Bytes of messages in the device's memory at their peak; expects them as planned, exactly or at
/// most. The host's are at most the planned ones and copies of inputs and losses of micro-batches.
size_t expect_planned_messages(train::Trainer& trainer, bool exactly = true);

/// Trains on one device; expects the plan of each kind of memory, to the byte: workspace,
/// activations, state.
void expect_planned_exactly(const io::Config& config, const kernels::Kernels& table);

}  // namespace espalier::testing
