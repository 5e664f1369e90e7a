// Method early-bird in whole runs: the step at which it prunes, equal masks over ranks and stages,
// and resumed runs.
#include "io/checkpoint/checkpoint.h"
#include "pruning/early_bird.h"
#include "tests/support/grid.h"
#include "tests/support/settings.h"

namespace espalier::early_bird_run_test {
namespace {

using namespace testing;

/// Checks after each step from 1 on; the sixth is the first that may draw. By the learning rate it
/// draws (distances of about 0.01), or masks differ until the end (0.3 and more).
io::Config waiting(const TempDir& dir, bool draws) {
  io::Config config = tiny_config(dir);
  apply_settings(
      config, "pruning.method=early-bird pruning.sparsity=0.8 pruning.every=1 pruning.to_step=9");
  config.optimizer.lr = draws ? 1e-4 : 1e-2;
  return config;
}

/// Distances by step; a step without one has none.
std::map<int64_t, double> distances(const io::Config& config) {
  std::map<int64_t, double> found;
  for (const nlohmann::json& line : metrics_without_times(config)) {
    if (line.contains("mask_distance")) {
      found[line["step"].get<int64_t>()] = line["mask_distance"].get<double>();
    }
  }
  return found;
}

/// The first step whose line shows pruned weights.
int64_t first_pruned(const io::Config& config) {
  for (const nlohmann::json& line : metrics_without_times(config)) {
    if (line["sparsity"].get<double>() > 0) {
      return line["step"].get<int64_t>();
    }
  }
  return -1;
}

using EarlyBirdRun = RunTest;

TEST_F(EarlyBirdRun, DrawsAsSoonAsMasksAreStable) {
  config = waiting(dir, true);
  std::string notes;
  const Outcome outcome = run(config, 1, notes);
  EXPECT_EQ(first_pruned(config), 7) << "after step 6";
  const auto found = distances(config);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_GT(found.at(7), 0);
  EXPECT_LT(found.at(7), pruning::kStableDistance);
  EXPECT_THAT(notes, HasSubstr("ticket drawn after step 6"));
  // The masks are those of magnitude after the same step.
  io::Config once = tiny_config(dir);
  once.optimizer.lr = config.optimizer.lr;
  apply_settings(once, "pruning.method=magnitude pruning.sparsity=0.8 pruning.at_step=6");
  once.run.out = (dir / "once").string();
  EXPECT_EQ(run(once), outcome);
}

TEST_F(EarlyBirdRun, PrunesAtToStepAtTheLatest) {
  config = waiting(dir, false);
  std::string notes;
  run(config, 1, notes);
  EXPECT_EQ(first_pruned(config), 10) << "after step 9";
  const auto found = distances(config);
  EXPECT_EQ(found.size(), 4U) << "after steps 6 to 9";
  for (const auto& [step, distance] : found) {
    EXPECT_GE(distance, pruning::kStableDistance) << step;
  }
  EXPECT_THAT(notes, HasSubstr("no early-bird ticket until pruning.to_step = 9"));
}

TEST_F(EarlyBirdRun, RanksAndStagesAgree) {
  for (const bool draws : {true, false}) {
    config = waiting(dir, draws);
    apply_settings(config, "model.layers=4 train.micro_batch=1");
    config.pruning.exclude = {"blocks.0.attention.qkv.weight"};  // of one stage alone
    const Outcome serial = run_grid(config, 1);
    const auto found = distances(config);
    ASSERT_FALSE(found.empty());
    apply_settings(config, "parallel.pipeline=2 parallel.schedule=1f1b");
    expect_equal(run_grid(config, 2), serial);
    EXPECT_EQ(distances(config), found);
    const Outcome both = run_grid(config, 4);  // two replicas of two stages
    const auto found_by_both = distances(config);
    config.parallel.pipeline = 1;
    expect_equal(both, run_grid(config, 2));
    EXPECT_EQ(found_by_both, distances(config));
  }
}

TEST_F(EarlyBirdRun, ResumeIsNoBreak) {
  config = waiting(dir, false);
  apply_settings(config, "train.checkpoint_every=1 train.keep_checkpoints=20");
  EXPECT_EQ(expect_resume_is_no_break(config, 1, {1, 7, 9}).losses.size(), 12U);
  io::Config early = waiting(dir, true);
  early.train.checkpoint_every = 1;
  early.run.out = (dir / "early").string();
  expect_resume_is_no_break(early, 2, {4});
  early.run.out = (dir / "drawn").string();
  expect_resume_is_no_break(early, 1, {8});
  io::Config stages = waiting(dir, false);
  apply_settings(stages, "train.checkpoint_every=1 train.micro_batch=1 parallel.pipeline=2");
  stages.run.out = (dir / "stages").string();
  expect_resume_is_no_break(stages, 2, {5});
}

TEST_F(EarlyBirdRun, CheckpointsHoldMasksUntilTheTicketIsDrawn) {
  config = waiting(dir, true);
  apply_settings(config, "train.checkpoint_every=1 train.keep_checkpoints=20");
  run(config);
  const auto holds = [&](int64_t step, const std::string& name) {
    const auto file =
        std::filesystem::path(config.run.out) / "checkpoints" / io::checkpoint_name(step);
    return io::CheckpointReader(file).has_optimizer(name, std::string(io::kMaskHistoryKind));
  };
  const std::string matrix = "blocks.0.mlp.expand.weight";
  EXPECT_FALSE(holds(1, matrix)) << "the first check follows the checkpoint";
  for (int64_t step = 2; step <= 6; ++step) {
    EXPECT_TRUE(holds(step, matrix)) << step;
    EXPECT_FALSE(holds(step, "embedding.token")) << step;
  }
  EXPECT_FALSE(holds(7, matrix));
}

}  // namespace
}  // namespace espalier::early_bird_run_test
