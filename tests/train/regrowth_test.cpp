// Runs whose masks grow back: the same function at the change, the same run on every grid and after
// every break, plans that equal use.
#include "pruning/regrowth.h"

#include "src/config/parse.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::regrowth_test {
namespace {

using namespace testing;

int64_t kept(const Outcome& outcome, const std::string& name) {
  return std::ssize(outcome.positions.at(name));
}

class Regrown : public RunTest {
 protected:
  Regrown() {
    apply_settings(config,
                   "train.steps=10 pruning.method=random pruning.sparsity=0.75 "
                   "pruning.dense_from_step=6");
  }
};

class RegrownTypes : public RunTestWithParam<std::string> {
 protected:
  RegrownTypes() {
    take_type(config, GetParam());
    apply_settings(config,
                   "train.steps=10 pruning.method=random pruning.sparsity=0.75 "
                   "pruning.dense_from_step=4:0.5,7");
  }
};

TEST_P(RegrownTypes, TheFunctionStaysAtTheChange) {
  config.sparse.storage.fallback = "dense";
  const Outcome grown = run(config);
  config.pruning.dense_from_step = "";
  const Outcome sparse = run(config);
  for (size_t step = 0; step < 5; ++step) {  // the step after the change still has the old values
    EXPECT_EQ(grown.losses[step], sparse.losses[step]) << step;
  }
  EXPECT_NE(grown.losses[6], sparse.losses[6]);
  for (const auto& [name, positions] : grown.positions) {
    EXPECT_EQ(positions.size(), grown.values.at(name).size());
    EXPECT_GE(positions.size(), sparse.positions.at(name).size());
  }
  EXPECT_EQ(kept(grown, "blocks.0.mlp.expand.weight"), 4 * config.model.width * config.model.width);
  EXPECT_LT(kept(sparse, "blocks.0.mlp.expand.weight"),
            2 * config.model.width * config.model.width);
}

TEST_P(RegrownTypes, ResumeIsNoBreakAndGridsChangeNoBit) {
  config.train.micro_batch = 3;  // other micro-batches are other sums
  const Outcome whole = run(config);
  EXPECT_EQ(run_with_breaks(config, 1, {3, 4, 6, 7, 9}), whole);
  apply_settings(config, "parallel.pipeline=2");
  EXPECT_EQ(run(config, 2).losses, whole.losses) << "stages";
  EXPECT_EQ(run_with_breaks(config, 2, {4, 7}).losses, whole.losses);
  apply_settings(config, "parallel.pipeline=1");
  const Outcome replicas = run(config, 2);
  config.parallel.zero = 1;
  EXPECT_EQ(run(config, 2), replicas) << "zero = 1";
  EXPECT_EQ(run_with_breaks(config, 2, {4, 7}), replicas);
}

INSTANTIATE_TEST_SUITE_P(DTypes, RegrownTypes, ::testing::Values("fp32", "bf16"));

/// Single elements, blocks and groups; once and gradually; also in storages that hold blocks only.
TEST_F(Regrown, EveryMethodAndStorageGrows) {
  const Outcome dense = run(io::Config(tiny_config(dir)));
  for (const std::string settings :
       {"", "pruning.method=magnitude pruning.at_step=2", "pruning.method=rigl:0.3 pruning.every=2",
        "pruning.method=magnitude pruning.from_step=1 pruning.to_step=5 pruning.every=2",
        "pruning.method=block:8 sparse.storage=block", "pruning.method=nm:1:4",
        "sparse.storage=expanded", "sparse.storage=tiles", "pruning.method=snip",
        "pruning.method=movement pruning.at_step=3", "optimizer.state_bits=8",
        "parallel.codec=maxmin:4"}) {
    SCOPED_TRACE(settings);
    io::Config made = config;
    apply_settings(made, settings);
    for (const std::string stages : {"6", "0.6", "6:0.5,8"}) {
      SCOPED_TRACE(stages);
      made.pruning.dense_from_step = stages;
      const Outcome grown = run(made, 2);
      for (const auto& [name, positions] : dense.positions) {
        EXPECT_EQ(positions.size(), grown.positions.at(name).size()) << name;
      }
    }
    made.pruning.dense_from_step = "6:0.5";
    const Outcome half = run(made, 2);
    EXPECT_NEAR(static_cast<double>(kept(half, "blocks.0.mlp.expand.weight")),
                0.5 * static_cast<double>(kept(dense, "blocks.0.mlp.expand.weight")), 64);
  }
}

TEST_F(Regrown, AnEarlyBirdTicketGrows) {
  apply_settings(config,
                 "pruning.method=early-bird pruning.every=1 pruning.to_step=7 "
                 "pruning.dense_from_step=8");
  const std::string name = "blocks.0.mlp.expand.weight";
  const Outcome dense = run(io::Config(tiny_config(dir)));
  const Outcome whole = run(config, 2);
  EXPECT_EQ(kept(whole, name), kept(dense, name));
  EXPECT_EQ(run_with_breaks(config, 2, {5, 7, 8, 9}), whole);
}

TEST_F(Regrown, MasksOfAFileGrowWithoutAMethod) {
  const Outcome whole = run(config);
  config.pruning.dense_from_step = "";
  run(config, 1, {.stop_after = 6});
  const std::string saved = (dir / "sparse.h5").string();
  std::filesystem::copy_file(dir / "run/checkpoints/step-000006.h5", saved);
  apply_settings(config, "pruning.method=none pruning.dense_from_step=1");
  const Outcome grown = run(config, 1, {.resume = "none", .init = saved});
  for (const auto& [name, positions] : whole.positions) {
    EXPECT_EQ(positions.size(), grown.positions.at(name).size()) << name;
  }
}

TEST_F(Regrown, PlansHoldTheDensePart) {
  for (const std::string storage : {"dense", "expanded", "sparse", "tiles"}) {
    for (const std::string stages : {"6", "4:0.5,7"}) {
      SCOPED_TRACE(storage + " " + stages);
      config.sparse.storage.fallback = storage;
      // Counts of each matrix, and sizes of indexes, that do not depend on the mask.
      apply_settings(config, "sparse.index=bitmap pruning.scope=layer");
      config.pruning.dense_from_step = stages;
      expect_within_plan(config, 1, 1.02);
      expect_within_plan(config, 2, 1.1);
    }
  }
}

/// AdaPrec copies the state before trials, also after the change.
TEST_F(Regrown, PlansHoldCopiesOfTheDenseState) {
  apply_settings(config,
                 "parallel.codec=adaprec:5:5 pruning.dense_from_step=4 train.steps=12 "
                 "model.width=64");
  expect_within_plan(config, 2);
}

TEST_F(Regrown, AResumeDoesNotPassAStageWithoutGrowing) {
  config.pruning.dense_from_step = "";
  run(config, 1, {.stop_after = 7});
  config.pruning.dense_from_step = "6";
  EXPECT_THAT(failure_of([&] { run(config, 1, {.resume = "auto"}); }),
              ::testing::HasSubstr("name a step after 7"));
  config.pruning.dense_from_step = "8";
  const Outcome grown = run(config, 1, {.resume = "auto"});
  EXPECT_EQ(kept(grown, "blocks.0.mlp.expand.weight"),
            std::ssize(grown.values.at("blocks.0.mlp.expand.weight")));
}

TEST_F(Regrown, TextsAreChecked) {
  const auto failure = [&](const std::string& text) {
    config.pruning.dense_from_step = text;
    return failure_of(
        [&] { pruning::check_regrowths(config.pruning, 10, config.pruning.at_step); });
  };
  EXPECT_EQ(failure("6"), "");
  EXPECT_EQ(failure("0.5:0.25,0.9"), "");
  for (const std::string wrong : {"10", "0", "-1", "x", "6:", "6:0.9", "6:0.5,6", "6:0.5,7:0.6",
                                  "6,7", "nan", "6:nan", "6.5", "6,", "1e300", "6:-0.1", ","}) {
    EXPECT_THAT(failure(wrong), ::testing::HasSubstr("dense_from_step")) << wrong;
  }
  config.pruning.method = "file";
  EXPECT_EQ(failure("6:0.95"), "");  // its sparsity is unknown
  config.pruning.method = "nm";
  config.pruning.dense_from_step = "6:0.25,8";
  config.sparse.index.fallback = "nm";
  EXPECT_THAT(failure_of([&] { config::validate(config); }), ::testing::HasSubstr("sparse.index"));
  config.pruning.dense_from_step = "6";
  EXPECT_EQ(failure_of([&] { config::validate(config); }), "");
  config.pruning.method = "magnitude";
  config.pruning.at_step = 6;
  EXPECT_THAT(failure("6"), ::testing::HasSubstr("not after the last pruning"));
}

}  // namespace
}  // namespace espalier::regrowth_test
