// Changes of a run's loss scale. In runs powers of two change no bit without overflow, and a step
// that overflows changes nothing.
#include "src/train/run/loss_scale.h"

#include <numeric>

#include "src/config/parse.h"
#include "tests/support/failure.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::train::loss_scale_test {
namespace {

using namespace testing;

/// Gradients of so few rows are above 1, so the first scale of fp16 overflows.
io::Config overflowing(const TempDir& dir, int64_t steps) {
  io::Config config = testing::tiny_config(dir);
  apply_settings(config, "model.context=2 train.dtype=fp16 train.global_batch=1");
  config.train.steps = steps;
  return config;
}

std::vector<bool> skipped(const io::Config& config) {
  std::vector<bool> steps;
  for (const nlohmann::json& line : testing::metrics_without_times(config)) {
    steps.push_back(line.at("grad_norm").is_null());
  }
  return steps;
}

using LossScaleRuns = RunTest;

TEST_F(LossScaleRuns, PowersOfTwoChangeNoBit) {
  for (const char* dtype : {"fp32", "bf16"}) {
    config = testing::tiny_config(dir);
    apply_settings(config, fmt::format("train.dtype={} train.micro_batch=4", dtype));
    config.optimizer.clip = 0.5;  // acts
    testing::prune(config);
    const Outcome plain = run(config);
    config.train.loss_scale = 1024;
    EXPECT_EQ(run(config), plain) << dtype;
    EXPECT_EQ(testing::metrics_without_times(config).back().at("loss_scale"), 1024);
    config.parallel.zero = 1;
    EXPECT_EQ(run(config, 1), plain) << dtype;
  }
}

TEST_F(LossScaleRuns, AnOverflowSkipsTheStep) {
  for (const bool master_copy : {true, false}) {
    config = overflowing(dir, 1);
    config.train.master_copy = master_copy;
    const Outcome after = run(config);
    ASSERT_EQ(skipped(config), std::vector<bool>{true});
    apply_settings(config, "optimizer.lr=0 optimizer.min_lr=0 train.loss_scale=1");
    EXPECT_EQ(after.values, run(config).values) << master_copy;
    for (const auto& [name, moments] : after.moments) {
      EXPECT_TRUE(std::ranges::all_of(moments, [](float x) { return x == 0; })) << name;
    }
  }
}

TEST_F(LossScaleRuns, AnOverflowHalvesTheScale) {
  config = overflowing(dir, 200);
  std::string notes;
  const Outcome outcome = run(config, 1, notes);
  const std::vector<bool> steps = skipped(config);
  ASSERT_TRUE(steps.front());
  EXPECT_FALSE(steps.back());
  EXPECT_THAT(notes, HasSubstr("step 1 was skipped: gradients overflowed at loss scale 65536; the "
                               "next loss scale is 32768"));
  double scale = 65536;
  for (const nlohmann::json& line : testing::metrics_without_times(config)) {
    EXPECT_EQ(line.at("loss_scale"), scale);
    scale /= line.at("grad_norm").is_null() ? 2 : 1;
  }
  const auto sum = [&](size_t from) {
    const auto first = outcome.losses.begin() + static_cast<int64_t>(from);
    return std::accumulate(first, first + 50, 0.0);
  };
  EXPECT_LT(sum(150), sum(0)) << "it learns";
}

/// AdamW does not count skipped steps: the first step that is not skipped has the moments, and so
/// the update, of a first step.
TEST_F(LossScaleRuns, SkippedStepsDoNotCountForBiasCorrection) {
  config = overflowing(dir, 1);
  config.optimizer.warmup_steps = 0;
  apply_settings(config, "optimizer.schedule=constant optimizer.weight_decay=0");
  config.optimizer.lr = config.optimizer.min_lr = 1e-3;
  const Outcome start = run(config);
  config.train.steps = 8;
  const std::vector<bool> steps = (run(config), skipped(config));
  const auto first = static_cast<int64_t>(std::ranges::find(steps, false) - steps.begin());
  ASSERT_LT(first, 8);
  config.train.steps = first + 1;
  EXPECT_NEAR(largest_difference(run(config), start), 1e-3, 1e-5)
      << "lr m / sqrt(v), each corrected for one step";
}

TEST_F(LossScaleRuns, ResumeIsNoBreak) {
  config = overflowing(dir, 20);
  apply_settings(config, "train.checkpoint_every=1 train.keep_checkpoints=100");
  const Outcome whole = run(config);
  for (const int step : {1, 2, 7}) {
    const auto file = dir / fmt::format("run/checkpoints/step-{:06}.h5", step);
    const Outcome rest = run(config, 1, {.resume = file.string()});
    EXPECT_EQ(rest.values, whole.values) << step;
    EXPECT_EQ(rest.moments, whole.moments) << step;
  }
}

TEST_F(LossScaleRuns, StagesAndShardsSkipTheSameSteps) {
  config = overflowing(dir, 12);
  config.train.gradient_dtype = "fp16";  // sums in fp32 do not overflow
  apply_settings(config, "train.global_batch=2 train.micro_batch=1");
  const Outcome alone = run(config);
  const std::vector<bool> steps = skipped(config);
  EXPECT_TRUE(steps.front());
  config.parallel.pipeline = 2;
  EXPECT_EQ(run(config, 2).losses, alone.losses);
  EXPECT_EQ(skipped(config), steps);
  config.parallel.pipeline = 1;
  const Outcome replicas = run(config, 2);
  config.parallel.zero = 1;
  EXPECT_EQ(run(config, 2).losses, replicas.losses);
}

TEST_F(LossScaleRuns, AFixedOneThatOverflowsEndsTheRun) {
  config = overflowing(dir, 4);
  config.train.loss_scale = 65536;
  const std::string why = failure_of([&] { run(config); });
  EXPECT_THAT(why, HasSubstr("the gradient norm is"));
  EXPECT_THAT(why, HasSubstr("train.loss_scale"));
}

TEST_F(LossScaleRuns, ErrorFeedbackAndAsyncNeedAFixedScale) {
  const auto failure = [&](auto change) {
    config = overflowing(dir, 4);
    change(config);
    return failure_of([&] { config::validate(config); });
  };
  const auto names = [](const std::string& why, const char* what) {
    return why.find(what) != std::string::npos &&
           why.find("set train.loss_scale to a number") != std::string::npos;
  };
  EXPECT_TRUE(names(failure([](io::Config& c) { c.parallel.error_feedback = true; }),
                    "parallel.error_feedback"));
  EXPECT_TRUE(names(failure([](io::Config& c) {
                      apply_settings(c, "parallel.pipeline=2 parallel.schedule=async");
                    }),
                    "async"));
  EXPECT_EQ(failure([](io::Config& c) {
              c.parallel.error_feedback = true;
              apply_settings(c, "parallel.codec=maxmin:4 train.loss_scale=1024");
            }),
            "");
}

io::TrainConfig half(double scale = 0) {
  io::TrainConfig config;
  config.dtype = "fp16";
  config.loss_scale = scale;
  return config;
}

TEST(LossScale, OnlyFp16HasAMovingOne) {
  EXPECT_EQ(LossScale(half()).value(), 65536);
  EXPECT_TRUE(LossScale(half()).dynamic());
  EXPECT_EQ(LossScale(half(128)).value(), 128);
  EXPECT_FALSE(LossScale(half(128)).dynamic());
  EXPECT_EQ(LossScale(io::TrainConfig()).value(), 1);
  EXPECT_FALSE(LossScale(io::TrainConfig()).dynamic());
}

TEST(LossScale, IsHalvedByOverflowAndDoubledByPatience) {
  LossScale scale(half());
  EXPECT_TRUE(scale.update(false));
  EXPECT_TRUE(scale.update(false));
  EXPECT_EQ(scale.value(), 16384);
  EXPECT_EQ(scale.skipped(), 2);
  for (int i = 0; i < 1999; ++i) {
    EXPECT_TRUE(scale.update(true));
  }
  EXPECT_EQ(scale.value(), 16384);
  EXPECT_TRUE(scale.update(true));
  EXPECT_EQ(scale.value(), 32768);
  EXPECT_TRUE(scale.update(false));  // and counts anew
  for (int i = 0; i < 1999; ++i) {
    EXPECT_TRUE(scale.update(true));
  }
  EXPECT_EQ(scale.value(), 16384);
}

TEST(LossScale, EndsWhereItIsNotTheReason) {
  LossScale scale(half());
  for (int i = 0; i < 16; ++i) {
    EXPECT_TRUE(scale.update(false));
  }
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.update(false));
  EXPECT_FALSE(LossScale(half(8)).update(false));
  EXPECT_FALSE(LossScale(io::TrainConfig()).update(false));
}

TEST(LossScale, GoesOnWhereACheckpointLeftIt) {
  LossScale scale(half());
  scale.update(false);
  for (int i = 0; i < 1500; ++i) {
    scale.update(true);
  }
  LossScale other(half());
  other.restore(scale.state());
  EXPECT_EQ(other.state(), scale.state());
  for (int i = 0; i < 500; ++i) {
    other.update(true);
  }
  EXPECT_EQ(other.value(), 65536);
  EXPECT_EQ(other.skipped(), 1);
  LossScale fixed(half(4));
  fixed.restore(scale.state());
  EXPECT_EQ(fixed.value(), 4);
  const std::string before = other.state();
  for (const std::string& text :
       std::vector<std::string>{"many", "65536", "65536 1 2 3", "65536 -1 0", "nan 0 0", "0.5 0 0",
                                "65536 2000 0", "65536 99999999999999999999 0"}) {
    EXPECT_THAT(failure_of([&] { other.restore(text); }), HasSubstr("loss scale is '" + text + "'"))
        << text;
    EXPECT_EQ(other.state(), before);
  }
}

}  // namespace
}  // namespace espalier::train::loss_scale_test
