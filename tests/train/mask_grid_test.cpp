// Masks from gradients have the bits of one rank on every grid, for every micro-batch; masks of
// --init that have the sparsity are the first masks.
#include "pruning/registry.h"
#include "src/train/masks/sample_gradients.h"
#include "tests/support/grid.h"
#include "tests/support/method_kinds.h"
#include "tests/support/settings.h"

namespace espalier::mask_grid_test {
namespace {

using namespace testing;

struct Grid {
  int ranks;
  int64_t stages, zero, micro_batch;
};

using EveryGrid = RunTestWithParam<std::string>;

/// "snip bf16 llama": method, type, family. Updates are so small that weights keep their bits, and
/// masks depend on gradients alone.
io::Config config_for(const TempDir& dir, const std::string& way) {
  io::Config config = tiny_config(dir);
  config.model.layers = 4;
  const std::string method = way.substr(0, way.find(' '));
  if (method != way) {
    take_type(config, way.substr(way.find(' ') + 1));
  }
  apply_settings(config, fmt::format("pruning.method={} pruning.sparsity=0.8", method));
  config.optimizer.lr = config.optimizer.min_lr = 1e-30;
  config.train.steps = 4;
  if (testing::moves(pruning::method_of(config.pruning))) {
    apply_settings(config, "pruning.every=2 pruning.to_step=4");
  }
  return config;
}

TEST_P(EveryGrid, HasTheMasksOfOneRank) {
  config = config_for(dir, GetParam());
  const Outcome one = run_grid(config, 1);
  ASSERT_FALSE(one.positions.empty());
  for (const auto& [ranks, stages, zero, micro_batch] :
       {Grid{1, 1, 0, 3}, Grid{2, 1, 0, 0}, Grid{4, 1, 1, 1}, Grid{3, 1, 0, 2}, Grid{2, 2, 0, 1},
        Grid{4, 2, 1, 0}, Grid{4, 4, 0, 2}}) {
    apply_settings(config, fmt::format("parallel.pipeline={} parallel.zero={} train.micro_batch={}",
                                       stages, zero, micro_batch));
    EXPECT_EQ(run_grid(config, ranks).positions, one.positions)
        << ranks << " ranks, " << stages << " stages, micro-batch " << micro_batch;
  }
}

/// Fewer samples than replicas: some only find the scales.
TEST_P(EveryGrid, HasTheMasksOfOneRankWithFewSamples) {
  config = config_for(dir, GetParam());
  config.train.global_batch = 4;
  const Outcome one = run_grid(config, 1);
  EXPECT_EQ(run_grid(config, 4).positions, one.positions);
}

INSTANTIATE_TEST_SUITE_P(Methods, EveryGrid,
                         ::testing::Values("snip", "snip bf16", "snip fp16", "grasp", "rigl",
                                           "rigl bf16", "rigl bf16 llama", "rigl-block:4",
                                           "set-nm"));

TEST(ScoredSamples, AreThoseOfTheGlobalBatch) {
  const auto samples = [](int64_t batch, int64_t micro, int together) {
    const auto found = train::ScoredSamples::of(batch, micro, together);
    return std::pair(found.unit, found.units);
  };
  EXPECT_EQ(samples(12, 0, 1), std::pair(int64_t{1}, int64_t{12}));
  EXPECT_EQ(samples(1024, 0, 1), std::pair(int64_t{1}, int64_t{64}));
  EXPECT_EQ(samples(128, 32, 1), std::pair(int64_t{32}, int64_t{2}));
  EXPECT_EQ(samples(128, 128, 1), std::pair(int64_t{128}, int64_t{1})) << "batch norm";
  EXPECT_EQ(samples(128, 32, 4), std::pair(int64_t{32}, int64_t{4})) << "shared statistics";
}

TEST(ScoredSamples, AreSummedInGroupsThatFit) {
  const auto bytes = [](size_t values) {  // replicas may have other moments
    return train::gradient_sum_bytes({.value = values, .moments = 7000}, 100, 50);
  };
  EXPECT_EQ(bytes(4000), 800U) << "all at once";
  EXPECT_EQ(bytes(1000), 500U) << "half of the state";
  EXPECT_EQ(bytes(100), 400U) << "the largest alone";
}

double sparsity_of(const TempDir& dir) {
  return testing::read_json(dir / "run/summary.json")["sparsity"].get<double>();
}

/// Of a run that ends at 80 % in global scope: layers differ in density.
std::string pruned_file(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  prune(config);
  config.pruning.sparsity = 0.8;
  config.run.out = (dir / "before").string();
  run(config);
  return (dir / "before/checkpoints/step-000012.h5").string();
}

std::vector<std::string> methods_of_runs() {
  std::vector<std::string> names;
  for (const pruning::Method* method : pruning::methods()) {
    if (testing::prunes(*method) && method->shape == nullptr) {
      names.emplace_back(method->name);
    }
  }
  return names;
}

using FromPrunedStart = RunTestWithParam<std::string>;

/// In any scope, on any grid, and with masks that move later.
TEST_P(FromPrunedStart, MasksOfTheSparsityAreTheFirstMasks) {
  const std::string file = pruned_file(dir);
  config.pruning.method = "none";
  config.optimizer.lr = config.optimizer.min_lr = 1e-30;
  const Outcome kept = run(config, 1, {.init = file});
  config.pruning.method = GetParam();
  config.pruning.sparsity = 0.8;
  const pruning::Method& method = pruning::method_of(config.pruning);
  config.pruning.at_step = testing::learns(method) ? 6 : -1;
  if (testing::waits(method)) {
    apply_settings(config, "pruning.to_step=6 pruning.every=1");
  }
  if (testing::moves(method)) {
    config.pruning.drop_fraction = 0;
  }
  for (const char* scope : {"global", "layer"}) {
    config.pruning.scope = scope;
    for (const int64_t stages : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} {}", scope, stages));
      config.parallel.pipeline = stages;
      EXPECT_EQ(run_grid(config, static_cast<int>(stages), {.init = file}).positions,
                kept.positions);
      EXPECT_NEAR(sparsity_of(dir), 0.8, 1e-3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, FromPrunedStart, ::testing::ValuesIn(methods_of_runs()));

using FromPrunedStartOfAnotherSparsity = RunTest;

TEST_F(FromPrunedStartOfAnotherSparsity, MovingMasksReachTheirs) {
  const std::string file = pruned_file(dir);
  for (const char* method : {"rigl", "set"}) {
    for (const double sparsity : {0.9, 0.5}) {
      config = tiny_config(dir);
      apply_settings(config, fmt::format("pruning.method={} pruning.sparsity={} pruning.every=3",
                                         method, sparsity));
      std::string notes;
      run(config, 1, notes, {.init = file});
      EXPECT_NEAR(sparsity_of(dir), std::max(sparsity, 0.8), 1e-3) << method;
      EXPECT_EQ(notes.find("nothing comes back") != std::string::npos, sparsity < 0.8) << notes;
    }
  }
}

}  // namespace
}  // namespace espalier::mask_grid_test
