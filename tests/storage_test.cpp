// Storages of a pruned weight as whole runs: all of them train to the same result, on any number of
// threads and ranks, resume each other's checkpoints, and hold the bytes that they promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/failure.h"
#include "tests/support.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::run;
using testing::TempDir;
using testing::tiny_config;

class Storages : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  /// Pruned after a few steps, so that masks change while state is there.
  io::Config config(const std::string& storage) const {
    io::Config made = tiny_config(dir_);
    made.train.dtype = std::get<1>(GetParam());
    made.pruning.method = std::get<0>(GetParam()) == "block" ? "block" : "magnitude";
    made.pruning.block = 8;
    made.pruning.sparsity = 0.75;
    made.pruning.at_step = 4;
    made.sparse.storage.fallback = storage;
    return made;
  }
  std::string storage() const { return std::get<0>(GetParam()); }
  /// bf16 products are rounded at other places: losses agree to the noise of that.
  double tolerance() const { return std::get<1>(GetParam()) == "fp32" ? 2e-5 : 2e-2; }

  void expect_same_losses(const Outcome& a, const Outcome& b) const {
    ASSERT_EQ(a.losses.size(), b.losses.size());
    for (size_t i = 0; i < a.losses.size(); ++i) {
      EXPECT_NEAR(a.losses[i], b.losses[i], tolerance()) << "step " << i + 1;
    }
    EXPECT_NEAR(a.val_loss, b.val_loss, tolerance());
    EXPECT_EQ(a.positions, b.positions);
  }

  TempDir dir_;
};

TEST_P(Storages, TrainsToTheLossOfDense) {
  const Outcome dense = run(config("dense"));
  const Outcome other = run(config(storage()));
  expect_same_losses(other, dense);
  EXPECT_LT(other.losses.back(), other.losses.front() - 0.1) << "it learns";
}

TEST_P(Storages, ThreadsDoNotChangeBits) {
  io::Config made = config(storage());
  const Outcome one = run(made);
  for (const int64_t threads : {2, 3}) {
    made.run.threads = threads;
    EXPECT_EQ(run(made), one) << threads << " threads";
  }
}

TEST_P(Storages, ResumeIsNoBreakAndAnyStorageResumesAnyOther) {
  const Outcome whole = run(config(storage()));
  for (const char* first : {"dense", "sparse"}) {
    train::TrainerOptions until;
    until.stop_after = 7;
    run(config(first), 1, until);
    train::TrainerOptions onwards;
    onwards.resume = "auto";
    Outcome resumed = run(config(storage()), 1, onwards);
    resumed.losses.insert(resumed.losses.begin(), whole.losses.begin(), whole.losses.begin() + 7);
    expect_same_losses(resumed, whole);
    if (first == storage()) {
      EXPECT_EQ(resumed, whole) << "bit for bit";
    }
  }
}

TEST_P(Storages, TwoRanksAreOne) {
  const Outcome one = run(config(storage()));
  expect_same_losses(run(config(storage()), 2), one);
}

INSTANTIATE_TEST_SUITE_P(All, Storages,
                         ::testing::Combine(::testing::Values("expanded", "sparse", "block"),
                                            ::testing::Values("fp32", "bf16")));

class States : public ::testing::TestWithParam<std::string> {
 protected:
  io::Config config() const {
    io::Config made = tiny_config(dir_);
    made.model.width = 64;  // wide enough for 8-bit moments in the pruned weights, too
    made.train.dtype = GetParam();
    made.pruning.method = "magnitude";
    made.pruning.sparsity = 0.5;
    made.pruning.at_step = 4;
    made.sparse.storage.fallback = "sparse";
    made.optimizer.state_bits = 8;
    return made;
  }
  TempDir dir_;
};

TEST_P(States, EightBitsLearnLikeThirtyTwo) {
  io::Config made = config();
  made.train.steps = 40;
  const Outcome coded = run(made);
  made.optimizer.state_bits = 32;
  const Outcome exact = run(made);
  EXPECT_NE(coded.losses.back(), exact.losses.back()) << "8 bits are in use";
  EXPECT_NEAR(coded.val_loss, exact.val_loss, 0.05);
}

TEST_P(States, EightBitRunsResumeBitForBit) {
  const Outcome whole = run(config());
  for (const int64_t stop : {2, 7}) {  // before and after the pruning
    train::TrainerOptions first;
    first.stop_after = stop;
    run(config(), 1, first);
    train::TrainerOptions second;
    second.resume = "auto";
    Outcome resumed = run(config(), 1, second);
    resumed.losses = whole.losses;
    EXPECT_EQ(resumed, whole) << "stopped after step " << stop;
  }
}

INSTANTIATE_TEST_SUITE_P(All, States, ::testing::Values("fp32", "bf16"));

TEST(AutoStorage, ChoosesAndSaysSo) {
  const TempDir dir;
  io::Config made = tiny_config(dir);
  made.pruning.method = "random";
  made.pruning.sparsity = 0.9;
  made.pruning.at_step = 0;
  made.sparse.storage.fallback = "auto";
  std::string notes;
  train::TrainerOptions options;
  options.on_note = [&](const std::string& text) { notes += text + '\n'; };
  const Outcome chosen = run(made, 1, options);
  EXPECT_THAT(notes, HasSubstr("chosen"));
  EXPECT_THAT(notes, HasSubstr("[128, 32]"));
  made.sparse.storage.fallback = "dense";
  const Outcome dense = run(made);
  EXPECT_NEAR(chosen.val_loss, dense.val_loss, 2e-5);
}

}  // namespace
}  // namespace espalier
