// Networks of equal time: which there are, their steps, the walk over learning rates, the answer.
#include "src/planner/equal_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/config/parse.h"
#include "tests/support/settings.h"

namespace espalier::planner::equal_time_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Kind = Contender::Kind;

io::Config config_of(const std::string& settings) {
  io::Config config;
  testing::apply_settings(config, settings);
  return config;
}

std::vector<std::string> names_of(const Contenders& all) {
  std::vector<std::string> names;
  for (const Contender& one : all.found) {
    names.push_back(one.name);
  }
  return names;
}

const Contender& named(const Contenders& all, const std::string& name) {
  for (const Contender& one : all.found) {
    if (one.name == name) {
      return one;
    }
  }
  throw std::runtime_error("no network " + name);
}

TEST(ContendersOfEqualTime, HaveOtherWidthsAndMasks) {
  const Contenders all = contenders_of(config_of("model.width=128 model.heads=4"), false);
  EXPECT_THAT(names_of(all),
              ElementsAre("dense", "dense-0.375-width", "dense-0.5-width", "dense-0.75-width",
                          "sparse", "sparse-1.5-width", "sparse-then-dense"));
  EXPECT_THAT(all.left_out, IsEmpty());
  const auto shape = [&](const std::string& name) {
    const io::Config& config = named(all, name).config;
    return std::tuple(config.model.width, config.model.heads, config.pruning.method,
                      config.pruning.dense_from_step, config.train.base_width);
  };
  EXPECT_EQ(shape("dense"), std::tuple(128, 4, "none", "", 0));
  EXPECT_EQ(shape("dense-0.5-width"), std::tuple(64, 2, "none", "", 128));
  EXPECT_EQ(shape("dense-0.75-width"), std::tuple(96, 3, "none", "", 128));
  EXPECT_EQ(shape("sparse"), std::tuple(128, 4, "random", "", 0));
  EXPECT_EQ(shape("sparse-1.5-width"), std::tuple(192, 6, "random", "", 128));
  EXPECT_EQ(shape("sparse-then-dense"), std::tuple(128, 4, "random", "0.8", 0));
  EXPECT_EQ(named(all, "sparse").config.pruning.sparsity, 0.9);
  for (const Contender& one : all.found) {  // "auto" would be another rate for another width
    EXPECT_EQ(one.config.optimizer.lr, 4e-3) << one.name;
  }
}

TEST(ContendersOfEqualTime, KeepThePruningOfTheConfig) {
  const Contenders all = contenders_of(
      config_of("train.steps=100 pruning.method=magnitude pruning.sparsity=0.8 pruning.at_step=20 "
                "pruning.dense_from_step=70"),
      false);
  EXPECT_EQ(named(all, "sparse").config.pruning.at_step, 20);
  EXPECT_EQ(named(all, "sparse").config.pruning.dense_from_step, "");
  EXPECT_EQ(named(all, "sparse-1.5-width").config.pruning.sparsity, 0.8);
  EXPECT_EQ(named(all, "sparse-then-dense").config.pruning.dense_from_step, "70");
}

TEST(ContendersOfEqualTime, ThoseWithoutAWidthAreLeftOutByName) {
  const auto left_out = [](const io::Config& config, bool trained) {
    const Contenders all = contenders_of(config, trained);
    EXPECT_THAT(names_of(all), ElementsAre("dense", "sparse", "sparse-then-dense"));
    EXPECT_EQ(all.left_out.size(), 4U);
    EXPECT_EQ(all.left_out.front().name, "dense-0.375-width");
    EXPECT_EQ(all.left_out.back().name, "sparse-1.5-width");
    return all.left_out.front().reason;
  };
  EXPECT_THAT(left_out(config_of("model.kind=vision data.kind=images"), false),
              HasSubstr("\"vision\" have no width"));
  EXPECT_THAT(left_out(config_of(""), true), HasSubstr("--init"));
  const Contenders file =
      contenders_of(config_of("pruning.method=file pruning.file=masks.h5"), false);
  ASSERT_EQ(file.left_out.size(), 1U);
  EXPECT_THAT(file.left_out.front().reason, HasSubstr("pruning.file have one width"));
}

TEST(ContendersOfEqualTime, HaveWholeHeads) {
  const Contenders all = contenders_of(config_of("model.width=2 model.heads=1"), false);
  ASSERT_EQ(all.left_out.size(), 3U);
  EXPECT_THAT(all.left_out.front().reason, HasSubstr("whole heads"));
}

TEST(ContendersOfEqualTime, GrowAfterTheLastPruningOrAreLeftOut) {
  const Contenders all = contenders_of(
      config_of("train.steps=100 pruning.method=magnitude pruning.at_step=90"), false);
  ASSERT_EQ(all.left_out.size(), 1U);
  EXPECT_EQ(all.left_out.front().name, "sparse-then-dense");
  EXPECT_THAT(all.left_out.front().reason, HasSubstr("not after the last pruning"));
}

TEST(StepsOfEqualTime, SchedulesKeepTheirShare) {
  const io::Config config = with_steps(
      config_of("train.steps=100 optimizer.warmup_steps=10 optimizer.decay_at=[50,80] "
                "pruning.method=magnitude pruning.from_step=20 pruning.to_step=60 pruning.every=4 "
                "pruning.dense_from_step=70:0.5,90 train.eval_every=25 train.checkpoint_every=-1"),
      250);
  EXPECT_EQ(config.train.steps, 250);
  EXPECT_EQ(config.optimizer.warmup_steps, 25);
  EXPECT_THAT(config.optimizer.decay_at, ElementsAre(125, 200));
  EXPECT_EQ(config.pruning.from_step, 50);
  EXPECT_EQ(config.pruning.to_step, 150);
  EXPECT_EQ(config.pruning.every, 10);
  EXPECT_EQ(config.pruning.at_step, -1);
  EXPECT_EQ(config.pruning.dense_from_step, "0.7:0.5,0.9:0");
  EXPECT_EQ(config.train.eval_every, 63);
  EXPECT_EQ(config.train.checkpoint_every, -1);
  EXPECT_EQ(with_steps(config, 2).optimizer.warmup_steps, 1);
  EXPECT_EQ(with_steps(config_of("optimizer.warmup_steps=0"), 5).optimizer.warmup_steps, 0);
}

TEST(StepsOfEqualTime, CountAtTheirDensity) {
  const auto counts = [](const std::string& settings) {
    const StepCounts found = step_counts(config_of("train.steps=100 " + settings));
    return std::pair(found.unpruned, found.pruned);
  };
  EXPECT_EQ(counts(""), std::pair(100.0, 0.0));
  EXPECT_EQ(counts("pruning.method=random"), std::pair(0.0, 100.0));
  EXPECT_EQ(counts("pruning.method=magnitude pruning.at_step=30"), std::pair(30.0, 70.0));
  EXPECT_EQ(counts("pruning.method=random pruning.dense_from_step=0.75"), std::pair(25.0, 75.0));
  const auto [unpruned, pruned] =
      counts("pruning.method=random pruning.sparsity=0.8 pruning.dense_from_step=50:0.4,90");
  EXPECT_DOUBLE_EQ(unpruned, 40 * 0.5 + 10);
  EXPECT_DOUBLE_EQ(pruned, 50 + 40 * 0.5);
  const auto gradual =
      counts("pruning.method=magnitude pruning.from_step=20 pruning.to_step=60 pruning.every=20");
  EXPECT_DOUBLE_EQ(gradual.first + gradual.second, 100);
  EXPECT_DOUBLE_EQ(gradual.first,
                   40 + 20 * 0.125);  // after step 40: 1 - (1 - 1/2)³ of the sparsity
}

TEST(StepsOfEqualTime, FitIntoTheTime) {
  const io::Config dense = config_of("train.steps=1000");
  EXPECT_EQ(steps_within(dense, {.unpruned = 0.05}, 50), 1000);
  EXPECT_EQ(steps_within(dense, {.unpruned = 0.05}, 0.04), 0);
  const io::Config sparse = config_of("train.steps=1000 pruning.method=random");
  EXPECT_EQ(steps_within(sparse, {.unpruned = 0.05, .pruned = 0.025}, 50), 2000);
  // 0.8 of the steps at 25 ms, the others at 50: 30 ms in the mean.
  const io::Config both =
      config_of("train.steps=1000 pruning.method=random pruning.dense_from_step=0.8");
  const StepSeconds step{.unpruned = 0.05, .pruned = 0.025};
  for (const double seconds : {0.3, 5.0, 50.0, 77.7}) {
    const int64_t steps = steps_within(both, step, seconds);
    EXPECT_NEAR(static_cast<double>(steps), seconds / 0.03, 2) << seconds;
    EXPECT_LE(step.of(step_counts(with_steps(both, steps))), seconds * (1 + 1e-5));
  }
}

/// The rates that are tried until one is bracketed.
std::vector<int> walk(double (*loss)(int exponent)) {
  RateLosses losses;
  std::vector<int> tried;
  while (const auto next = next_rate(losses)) {
    tried.push_back(*next);
    losses[*next] = loss(*next);
  }
  return tried;
}

TEST(RatesOfEqualTime, AreWalkedUntilTheBestIsBracketed) {
  EXPECT_THAT(walk([](int e) { return std::abs(e - 0.1); }), ElementsAre(0, -1, 1));
  EXPECT_THAT(walk([](int e) { return std::abs(e - 2.9); }), ElementsAre(0, -1, 1, 2, 3, 4));
  EXPECT_THAT(walk([](int e) { return std::abs(e + 2.1); }), ElementsAre(0, -1, -2, -3));
  // High rates diverge, also the first one.
  EXPECT_THAT(walk([](int e) { return e > -2 ? INFINITY : 1.0 - e; }), ElementsAre(0, -1, -2, -3));
  EXPECT_EQ(walk([](int e) { return -1.0 * e; }).back(), kMostDoublings);
  EXPECT_EQ(walk([](int) { return static_cast<double>(INFINITY); }).back(), -kMostDoublings);
}

TEST(AnswerOfEqualTime, SaysFirstWhatDoesNotPay) {
  const std::vector<TunedLosses> all{{"dense", Kind::dense, {1.72, 1.73, 1.71}},
                                     {"small", Kind::smaller_dense, {1.66, 1.67, 1.68}},
                                     {"sparse", Kind::sparse, {1.62, 1.63, 1.61}},
                                     {"wide", Kind::sparse, {1.80, 1.81, 1.82}},
                                     {"near", Kind::sparse, {1.66, 1.665, 1.67}},
                                     {"failed", Kind::sparse, {}}};
  const std::vector<std::string> said = answer(all);
  ASSERT_EQ(said.size(), 3U);
  EXPECT_EQ(said[0],
            "wide ends 0.1400 (± 0.0082) above the best dense network, small: it does not pay.");
  EXPECT_THAT(said[1], HasSubstr("near ends 0.0050"));
  EXPECT_THAT(said[1], HasSubstr("no more than seeds differ"));
  EXPECT_EQ(said[2], "sparse ends 0.0500 (± 0.0082) below the best dense network, small: it pays.");
}

TEST(AnswerOfEqualTime, ComparesWithTheBestDenseNetwork) {
  const auto said = answer(std::vector<TunedLosses>{{"dense", Kind::dense, {1.6}},
                                                    {"small", Kind::smaller_dense, {1.7}},
                                                    {"sparse", Kind::sparse, {1.65}}});
  EXPECT_EQ(said.front(), "Sparsity does not pay here.");
  EXPECT_THAT(said.back(), HasSubstr("0.0500 (one seed: error unknown) above the best dense "
                                     "network, dense"));
  EXPECT_THAT(answer(std::vector<TunedLosses>{{"dense", Kind::dense, {1.6}},
                                              {"sparse", Kind::sparse, {1.5}}})
                  .back(),
              HasSubstr("No smaller dense network has a result"));
  EXPECT_THAT(answer(std::vector<TunedLosses>{{"dense-0.375-width", Kind::smaller_dense, {1.6}},
                                              {"dense", Kind::dense, {1.7}},
                                              {"sparse", Kind::sparse, {1.5}}})
                  .back(),
              HasSubstr("the narrowest dense network tried; a narrower one may be better"));
  EXPECT_THAT(
      answer(std::vector<TunedLosses>{{"dense", Kind::dense, {1.6}}, {"sparse", Kind::sparse, {}}}),
      ElementsAre(HasSubstr("There is no answer")));
}

}  // namespace
}  // namespace espalier::planner::equal_time_test
