// Every registered schedule of the learning rate: values at some steps, computed by hand.
#include "src/optim/schedule.h"

#include <gtest/gtest.h>

#include "tests/support/failure.h"

namespace espalier::optim::schedule_test {
namespace {

/// A run of 110 steps, 10 of them warm-up.
constexpr int64_t kSteps = 110;

io::OptimizerConfig config_of(std::string_view schedule) {
  io::OptimizerConfig config;
  config.lr = 0.5;
  config.min_lr = 0.1;
  config.warmup_steps = 10;
  config.schedule = schedule;
  config.decay_at = {30, 60, 200};
  config.decay_factor = 0.25;
  config.power = 3;
  config.decay_share = 0.5;
  return config;
}

struct Row {
  std::string_view schedule;
  double at_10, at_30, at_59, at_60, at_85, at_109;
};
constexpr Row kRows[] = {
    {"cosine", 0.5, 0.1 + 0.2 * (1 + 0.80901699437494745), 0.1 + 0.2 * (1 + 0.03141075907812829),
     0.3, 0.1 + 0.2 * (1 - 0.70710678118654752), 0.1 + 0.2 * (1 - 0.99950656036573156)},
    {"linear", 0.5, 0.42, 0.304, 0.3, 0.2, 0.104},
    {"polynomial", 0.5, 0.1 + 0.4 * 0.512, 0.1 + 0.4 * 0.132651, 0.15, 0.10625, 0.1000004},
    {"wsd", 0.5, 0.5, 0.5, 0.5, 0.3, 0.108},
    {"step", 0.5, 0.125, 0.125, 0.03125, 0.03125, 0.03125},
    {"constant", 0.5, 0.5, 0.5, 0.5, 0.5, 0.5},
};

TEST(LearningRate, SchedulesHaveTheirFormulas) {
  for (const Row& row : kRows) {
    const io::OptimizerConfig config = config_of(row.schedule);
    const auto rate = [&](int64_t step) { return learning_rate(config, step, kSteps); };
    EXPECT_DOUBLE_EQ(rate(0), 0.05) << row.schedule;
    EXPECT_DOUBLE_EQ(rate(8), 0.45) << row.schedule;
    EXPECT_NEAR(rate(10), row.at_10, 1e-12) << row.schedule;
    EXPECT_NEAR(rate(30), row.at_30, 1e-12) << row.schedule;
    EXPECT_NEAR(rate(59), row.at_59, 1e-12) << row.schedule;
    EXPECT_NEAR(rate(60), row.at_60, 1e-12) << row.schedule;
    EXPECT_NEAR(rate(85), row.at_85, 1e-12) << row.schedule;
    EXPECT_NEAR(rate(109), row.at_109, 1e-12) << row.schedule;
  }
}

TEST(LearningRate, EveryScheduleHasARow) {
  for (const LrSchedule* schedule : lr_schedules()) {
    EXPECT_NE(std::ranges::find(kRows, schedule->name, &Row::schedule), std::end(kRows))
        << schedule->name;
  }
}

/// Bounds of min_lr hold where `to_min_lr` says that it is read.
TEST(LearningRate, OnlySomeSchedulesReadTheLeastRate) {
  for (const LrSchedule* schedule : lr_schedules()) {
    io::OptimizerConfig config = config_of(schedule->name);
    const double before = learning_rate(config, 100, kSteps);
    config.min_lr = 0.2;
    EXPECT_EQ(learning_rate(config, 100, kSteps) != before, schedule->to_min_lr) << schedule->name;
  }
}

/// A polynomial of power 1 is the line.
TEST(LearningRate, APolynomialOfPowerOneIsLinear) {
  io::OptimizerConfig line = config_of("linear");
  io::OptimizerConfig polynomial = config_of("polynomial");
  polynomial.power = 1;
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(learning_rate(polynomial, step, kSteps), learning_rate(line, step, kSteps), 1e-15);
  }
}

/// The largest learning rate of a matrix of blocks, at full density.
double hidden_rate(const io::Config& config) {
  const double width = static_cast<double>(config.model.width);
  const double base = static_cast<double>(config.train.base_width);
  return config.optimizer.lr / (base > 0 ? width / base : 1);
}

TEST(AutomaticRate, FollowsTheWidthOfTransformersInEveryParametrization) {
  for (const char* parametrization : {"standard", "supar", "supar-lr"}) {
    for (const int64_t width : {64, 128, 768, 4096}) {
      io::Config config;
      config.train.parametrization = parametrization;
      config.model.width = width;
      const io::Config chosen = with_learning_rate(config, false);
      const double wider = std::max(1.0, static_cast<double>(width) / 128);
      EXPECT_DOUBLE_EQ(hidden_rate(chosen), 4e-3 / wider) << parametrization << width;
      EXPECT_LE(chosen.optimizer.min_lr, chosen.optimizer.lr);
      EXPECT_DOUBLE_EQ(hidden_rate(with_learning_rate(config, true)), 2e-4 / wider);
    }
  }
}

/// Decay has room, and another base width keeps the rate of the matrices.
TEST(AutomaticRate, FitsTheOtherKeys) {
  io::Config config;
  config.model.width = 1024;
  config.train.base_width = 256;
  EXPECT_DOUBLE_EQ(hidden_rate(with_learning_rate(config, false)), 4e-3 / 8);
  config.optimizer.kind = "lion";
  const io::OptimizerConfig lion = with_learning_rate(config, true).optimizer;
  EXPECT_LE(lion.min_lr, lion.lr / 10);
  config.optimizer.min_lr = 0.1;
  EXPECT_NE(failure_of([&] { with_learning_rate(config, false); }), "");
}

TEST(AutomaticRate, ANumberStays) {
  io::Config config;
  config.model.width = 4096;
  config.optimizer.lr = 3e-4;
  const io::Config chosen = with_learning_rate(config, true);
  EXPECT_EQ(chosen.optimizer.lr, 3e-4);
  EXPECT_EQ(chosen.train.base_width, 0);
}

}  // namespace
}  // namespace espalier::optim::schedule_test
