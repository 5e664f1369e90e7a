// A device with too little memory. A run that cannot fit is refused before it starts, and the
// message names a size that fits by the plan. A run that still runs out of memory ends with the
// arena's table, and its last checkpoint loads.
#include "tests/device/late_runs.h"
#include "tests/support/failure.h"

namespace espalier::memory_test {
namespace {

using testing::LittleMemory;
using testing::run_late;
using testing::TempDir;

io::Config config_of(const TempDir& dir) {
  io::Config config = testing::tiny_config(dir);
  config.model.width = 128;
  config.train.micro_batch = 1;
  return config;
}

size_t planned(const io::Config& config) {
  size_t bytes = 0;
  testing::on_ranks(1, [&](parallel::Communicator& comm) {
    bytes = train::Trainer(config, comm, testing::late_options()).fit().plan.needed();
  });
  return bytes;
}

/// A run that the plan accepts fits; a run that it refuses does not.
TEST(LittleDevice, RefusesWithWhatWouldFit) {
  const TempDir dir;
  io::Config config = config_of(dir);
  const size_t all = planned(config);
  config.optimizer.offload = true;
  const size_t offloaded = planned(config);
  config.optimizer.offload = false;
  config.optimizer.state_bits = 8;
  const size_t coded = planned(config);
  ASSERT_LT(offloaded, coded);
  ASSERT_LT(coded, all);
  config.optimizer.state_bits = 32;

  const LittleMemory device(offloaded + (coded - offloaded) / 2);
  const std::string said = failure_of([&] { run_late(config); });
  EXPECT_THAT(said,
              AllOf(HasSubstr("the device has "), HasSubstr("moment "),
                    HasSubstr("prune from the start"), HasSubstr("optimizer.offload = true (")));
  EXPECT_THAT(said, ::testing::ContainsRegex("offload = true \\([^)]*, fits\\)"));
  EXPECT_THAT(said, ::testing::ContainsRegex("state_bits = 8 \\([0-9.]* MiB\\)"));
  EXPECT_THAT(said, Not(HasSubstr("all those with a size here")));
  EXPECT_THROW(
      {
        config.optimizer.state_bits = 8;
        run_late(config);
      },
      Failure);
  config.optimizer.state_bits = 32;
  config.optimizer.offload = true;
  EXPECT_EQ(run_late(config).losses.size(), static_cast<size_t>(config.train.steps));
}

TEST(LittleDevice, SaysWhenOnlyEverythingTogetherFits) {
  const TempDir dir;
  const io::Config config = config_of(dir);
  io::Config least = config;
  least.train.dtype = "bf16";
  least.train.recompute = "full";
  least.optimizer.state_bits = 8;
  least.optimizer.offload = true;
  const LittleMemory device(planned(least));
  const std::string said = failure_of([&] { run_late(config); });
  EXPECT_THAT(said, ::testing::ContainsRegex("all those with a size here \\([^)]*, fits\\)"));
  EXPECT_EQ(run_late(least).losses.size(), static_cast<size_t>(config.train.steps));
}

/// Another user allocates memory, so less is available than the device reported.
TEST(LittleDevice, RunsOutAndTheLastCheckpointLoads) {
  const TempDir dir;
  io::Config config = config_of(dir);
  testing::prune(config);
  config.pruning.at_step = 8;
  config.sparse.storage.fallback = "sparse";
  const size_t needs = planned(config);
  const testing::Outcome whole = run_late(config);
  train::TrainerOptions options;
  options.stop_after = 6;
  run_late(config, 1, options);
  options.stop_after = 0;
  options.resume = "auto";
  {
    const LittleMemory device(needs / 2, 2 * needs);
    EXPECT_THAT(failure_of([&] { run_late(config, 1, options); }),
                AllOf(HasSubstr("no memory on the device for "), HasSubstr("weight "),
                      HasSubstr("something else takes the device's memory")));
  }
  {
    const LittleMemory device(needs / 2, needs + needs / 10);
    EXPECT_THAT(
        failure_of([&] { run_late(config, 1, options); }),
        AllOf(HasSubstr("no memory on the device for "), HasSubstr("optimizer.offload = true (")));
  }
  testing::Outcome resumed = run_late(config, 1, options);
  resumed.losses = whole.losses;
  EXPECT_EQ(resumed, whole);
}

}  // namespace
}  // namespace espalier::memory_test
