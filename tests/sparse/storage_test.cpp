// Storages of a pruned weight as whole runs: all train to the same result, on any number of threads
// and ranks, resume each other's checkpoints, and use the stated bytes.
#include <algorithm>
#include <cmath>

#include "io/checkpoint/checkpoint.h"
#include "sparse/store/registry.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::storage_test {
namespace {

using ::testing::ContainsRegex;
using testing::Outcome;
using testing::run;
using testing::TempDir;
using testing::tiny_config;

/// The share of positions kept by `a` that `b` does not keep.
double share_moved(const Outcome& a, const Outcome& b) {
  double moved = 0;
  double kept = 0;
  for (const auto& [name, mine] : a.positions) {
    const std::vector<int32_t>& others = b.positions.at(name);
    std::vector<int32_t> gone;
    std::ranges::set_difference(mine, others, std::back_inserter(gone));
    moved += static_cast<double>(gone.size());
    kept += static_cast<double>(mine.size());
  }
  return moved / kept;
}

/// Losses, and the kept positions. Products of 16 bits round at different points: losses agree up
/// to that rounding, which also decides which of two elements at the threshold stays; the share
/// `moved` of them at most differs.
void expect_same(const Outcome& got, const Outcome& want, const std::string& dtype,
                 double fp32_tolerance, double moved) {
  const double tolerance = dtype == "fp32" ? fp32_tolerance : 2e-2;
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance) << "step " << i + 1;
  }
  EXPECT_NEAR(got.val_loss, want.val_loss, tolerance);
  if (dtype == "fp32") {
    EXPECT_EQ(got.positions, want.positions);
  } else {
    EXPECT_LE(share_moved(got, want), moved);
  }
}

/// Seven steps with one config, then all others with another; the losses of the first steps are
/// those of `whole`.
Outcome run_in_parts(const io::Config& first, const io::Config& second, const Outcome& whole) {
  run(first, 1, {.stop_after = 7});
  Outcome resumed = run(second, 1, {.resume = "auto"});
  resumed.losses.insert(resumed.losses.begin(), whole.losses.begin(), whole.losses.begin() + 7);
  return resumed;
}

class Storages : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  /// Pruned after a few steps, so that masks change with existing state.
  io::Config config(const std::string& storage) const {
    io::Config made = tiny_config(dir_);
    made.train.dtype = std::get<1>(GetParam());
    testing::apply_settings(made, this->storage() == "block" ? "blocks" : "prune");
    made.sparse.storage.fallback = storage;
    return made;
  }
  std::string storage() const { return std::get<0>(GetParam()); }
  static void expect_same_losses(const Outcome& a, const Outcome& b) {
    expect_same(a, b, std::get<1>(GetParam()), 2e-5, 1e-3);
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
    const Outcome resumed = run_in_parts(config(first), config(storage()), whole);
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

std::vector<std::string> all_but_dense() {
  std::vector<std::string> found = names(sparse::storages());
  std::erase(found, "dense");
  return found;
}

INSTANTIATE_TEST_SUITE_P(All, Storages,
                         ::testing::Combine(::testing::ValuesIn(all_but_dense()),
                                            ::testing::Values("fp32", "bf16", "fp16")));

class States : public ::testing::TestWithParam<std::string> {
 protected:
  io::Config config() const {
    io::Config made = tiny_config(dir_);
    made.model.width = 64;  // wide enough for 8-bit moments in the pruned weights, too
    made.train.dtype = GetParam();
    testing::apply_settings(made, "prune_sparse pruning.sparsity=0.5 optimizer.state_bits=8");
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
  ASSERT_EQ(coded.losses.size(), exact.losses.size());
  for (size_t i = 0; i < exact.losses.size(); ++i) {  // measured: up to 5e-4
    EXPECT_NEAR(coded.losses[i], exact.losses[i], 2e-3) << "step " << i + 1;
  }
  EXPECT_NEAR(coded.val_loss, exact.val_loss, 2e-3);
}

TEST_P(States, EightBitRunsResumeBitForBit) {
  const Outcome whole = run(config());
  for (const int64_t stop : {2, 7}) {  // before and after the pruning
    run(config(), 1, {.stop_after = stop});
    Outcome resumed = run(config(), 1, {.resume = "auto"});
    resumed.losses = whole.losses;
    EXPECT_EQ(resumed, whole) << "stopped after step " << stop;
  }
}

INSTANTIATE_TEST_SUITE_P(All, States, ::testing::Values("fp32", "bf16"));

/// The run has the bits of one whose config names the storages that were chosen.
TEST(AutoStorage, TrainsWithTheStoragesItNames) {
  for (const double sparsity : {0.9, 0.2}) {  // a sparse storage is the fastest; a dense one is
    SCOPED_TRACE(sparsity);
    const TempDir dir;
    io::Config made = tiny_config(dir);
    made.model.width = 64;
    made.pruning.method = "random";
    made.pruning.sparsity = sparsity;
    made.pruning.at_step = 0;
    made.sparse.storage.fallback = "auto";
    std::string notes;
    const Outcome chosen = run(made, 1, notes);
    using Names = std::map<std::string, std::string>;
    const auto summary = testing::read_json(dir / "run/summary.json");
    const auto storages = summary["manifest"]["storages"].get<Names>();
    EXPECT_EQ(summary["choices"]["storage"].get<Names>(), storages);
    EXPECT_EQ(storages.size(), 8U) << "four matrices of two blocks";
    EXPECT_THAT(notes, ContainsRegex("\\[256, 64\\] .* " +
                                     storages.at("blocks.0.mlp.expand.weight") + "\n"));
    made.sparse.storage.fallback = "sparse";
    made.sparse.storage.patterns.assign(storages.begin(), storages.end());
    EXPECT_EQ(run(made), chosen);
  }
}

/// Edges that divide the widths of the network, edges that do not, and edges larger than matrices.
class BlockEdges : public ::testing::TestWithParam<std::tuple<int64_t, std::string>> {
 protected:
  /// Gradual pruning: lists change.
  io::Config gradual(const std::string& storage) const {
    io::Config made = tiny_config(dir_);
    made.train.dtype = std::get<1>(GetParam());
    made.model.width = 40;
    testing::apply_settings(made,
                            "blocks pruning.sparsity=0.5 pruning.at_step=-1 pruning.every=2 "
                            "pruning.from_step=2 pruning.to_step=8");
    made.pruning.block = std::get<0>(GetParam());
    made.sparse.storage.fallback = storage;
    return made;
  }
  static void expect_equal(const Outcome& got, const Outcome& want) {
    expect_same(got, want, std::get<1>(GetParam()), 1e-5, 5e-3);
  }
  TempDir dir_;
};

TEST_P(BlockEdges, FollowMasksThatChange) {
  io::Config made = gradual("block");
  const Outcome one = run(made);
  expect_equal(one, run(gradual("dense")));
  for (const int64_t threads : {2, 3}) {
    made.run.threads = threads;
    EXPECT_EQ(run(made), one) << threads << " threads";
  }
}

TEST_P(BlockEdges, ACheckpointOfOneStorageIsOneOfTheOthers) {
  const Outcome whole = run(gradual("block"));
  for (const auto& [first, second] : {std::pair{"block", "block"},
                                      {"block", "sparse"},
                                      {"block", "dense"},
                                      {"sparse", "block"},
                                      {"dense", "block"}}) {
    const Outcome resumed = run_in_parts(gradual(first), gradual(second), whole);
    expect_equal(resumed, whole);
    if (first == std::string(second)) {
      EXPECT_EQ(resumed, whole) << "bit for bit";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockEdges,
                         ::testing::Combine(::testing::Values(4, 7, 16, 24, 64),
                                            ::testing::Values("fp32", "bf16")));

TEST(BlockStorage, SmallerBlocksThanThePruned) {
  const TempDir dir;
  io::Config made = tiny_config(dir);
  made.pruning.method = "block";
  made.pruning.block = 32;
  made.pruning.sparsity = 0.5;
  made.pruning.at_step = 0;
  made.sparse.storage.fallback = "block";
  const Outcome whole = run(made);
  for (const int64_t edge : {16, 8}) {
    made.sparse.block = edge;
    EXPECT_NEAR(run(made).losses.back(), whole.losses.back(), 1e-5) << edge;
  }
  made.sparse.block = 12;
  EXPECT_THAT(failure_of([&] { run(made); }), HasSubstr("without an edge"));
}

TEST(BlockStorage, RefusesAMaskWithoutBlocks) {
  const TempDir dir;
  io::Config made = tiny_config(dir);
  made.pruning.method = "magnitude";
  made.pruning.sparsity = 0.9;
  made.pruning.at_step = 2;
  made.sparse.storage.fallback = "block";
  const std::string message = failure_of([&] { run(made); });
  EXPECT_THAT(message, HasSubstr("sparse"));
  EXPECT_THAT(message, HasSubstr("block"));
}

TEST(BlockStorage, RefusesGivenMasksWithoutBlocks) {
  const TempDir dir;
  io::Config made = tiny_config(dir);
  made.pruning.method = "random";
  made.pruning.sparsity = 0.98;
  made.pruning.at_step = 0;
  run(made);
  train::TrainerOptions options;
  options.init = dir / "pruned.h5";
  std::filesystem::copy(dir / "run/checkpoints" / io::checkpoint_name(12), options.init);
  made.sparse.storage.fallback = "block";
  made.pruning.method = "none";
  const std::string message = failure_of([&] { run(made, 2, options); });
  EXPECT_THAT(message, HasSubstr("whole 16x16 blocks would hold"));
  EXPECT_THAT(message, HasSubstr("sparse.storage = \"sparse\""));
}

TEST(AutoStorage, OffersBlocksWhereMasksHaveThem) {
  const TempDir dir;
  io::Config made = tiny_config(dir);
  made.pruning.sparsity = 0.5;
  made.pruning.block = 16;
  made.pruning.at_step = 0;
  made.sparse.storage.fallback = "auto";
  train::TrainerOptions options;
  auto offers_blocks = [&](const std::string& method) {
    made.pruning.method = method;
    std::string notes;
    run(made, 1, notes, options);
    EXPECT_THAT(notes, HasSubstr("block ms"));
    return notes.find(" -  ") == std::string::npos;  // a storage that was not timed
  };
  EXPECT_FALSE(offers_blocks("random"));
  EXPECT_FALSE(offers_blocks("nm"));
  EXPECT_TRUE(offers_blocks("block"));
  // Already pruned, without further pruning: the masks themselves show that.
  options.init = dir / "pruned.h5";
  std::filesystem::copy(dir / "run/checkpoints" / io::checkpoint_name(12), options.init);
  EXPECT_TRUE(offers_blocks("none"));
}

}  // namespace
}  // namespace espalier::storage_test
