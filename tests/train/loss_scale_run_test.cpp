// Runs with scaled gradients: powers of two change no bit without overflow, and a step that
// overflows changes nothing.
#include <gtest/gtest.h>

#include <numeric>

#include "src/config/parse.h"
#include "src/train/run/loss_scale.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier::loss_scale_run_test {
namespace {

using namespace testing;

/// Gradients of so few rows are above 1, so the first scale of fp16 overflows.
io::Config overflowing(const TempDir& dir, int64_t steps) {
  io::Config config = testing::tiny_config(dir);
  config.model.context = 2;
  config.train.dtype = "fp16";
  config.train.global_batch = 1;
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

TEST(LossScaleRuns, PowersOfTwoChangeNoBit) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = dtype;
    config.train.micro_batch = 4;
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

TEST(LossScaleRuns, AnOverflowSkipsTheStep) {
  const TempDir dir;
  io::Config config = overflowing(dir, 1);
  const Outcome after = run(config);
  ASSERT_EQ(skipped(config), std::vector<bool>{true});
  config.optimizer.lr = config.optimizer.min_lr = 0;
  config.train.loss_scale = 1;
  const Outcome before = run(config);
  EXPECT_EQ(after.values, before.values);
  for (const auto& [name, moments] : after.moments) {
    EXPECT_TRUE(std::ranges::all_of(moments, [](float x) { return x == 0; })) << name;
  }
}

TEST(LossScaleRuns, AnOverflowHalvesTheScale) {
  const TempDir dir;
  const io::Config config = overflowing(dir, 200);
  std::vector<std::string> notes;
  const Outcome outcome = run(config, 1, {.on_note = [&](const std::string& note) {
                                if (!note.starts_with("without effect")) {
                                  notes.push_back(note);
                                }
                              }});
  const std::vector<bool> steps = skipped(config);
  ASSERT_TRUE(steps.front());
  EXPECT_FALSE(steps.back());
  EXPECT_NE(notes.front().find("step 1 was skipped: gradients overflowed at loss scale 65536; the "
                               "next loss scale is 32768"),
            std::string::npos)
      << notes.front();
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
TEST(LossScaleRuns, SkippedStepsDoNotCountForBiasCorrection) {
  const TempDir dir;
  io::Config config = overflowing(dir, 1);
  config.optimizer.warmup_steps = 0;
  config.optimizer.schedule = "constant";
  config.optimizer.weight_decay = 0;
  config.optimizer.lr = config.optimizer.min_lr = 1e-3;
  const Outcome start = run(config);
  config.train.steps = 8;
  const std::vector<bool> steps = (run(config), skipped(config));
  const auto first = static_cast<int64_t>(std::ranges::find(steps, false) - steps.begin());
  ASSERT_LT(first, 8);
  config.train.steps = first + 1;
  const Outcome stepped = run(config);
  float largest = 0;
  for (const auto& [name, values] : stepped.values) {
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i] - start.values.at(name)[i]));
    }
  }
  EXPECT_NEAR(largest, 1e-3F, 1e-5F) << "lr m / sqrt(v), each corrected for one step";
}

TEST(LossScaleRuns, ResumeIsNoBreak) {
  const TempDir dir;
  io::Config config = overflowing(dir, 20);
  config.train.checkpoint_every = 1;
  config.train.keep_checkpoints = 100;
  const Outcome whole = run(config);
  for (const int step : {1, 2, 7}) {
    const auto file = dir / fmt::format("run/checkpoints/step-{:06}.h5", step);
    const Outcome rest = run(config, 1, {.resume = file.string()});
    EXPECT_EQ(rest.values, whole.values) << step;
    EXPECT_EQ(rest.moments, whole.moments) << step;
  }
}

TEST(LossScaleRuns, StagesAndShardsSkipTheSameSteps) {
  const TempDir dir;
  io::Config config = overflowing(dir, 12);
  config.train.gradient_dtype = "fp16";  // sums in fp32 do not overflow
  config.train.global_batch = 2;
  config.train.micro_batch = 1;
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

TEST(LossScaleRuns, AFixedOneThatOverflowsEndsTheRun) {
  const TempDir dir;
  io::Config config = overflowing(dir, 4);
  config.train.loss_scale = 65536;
  const std::string why = failure_of([&] { run(config); });
  EXPECT_NE(why.find("the gradient norm is"), std::string::npos) << why;
  EXPECT_NE(why.find("train.loss_scale"), std::string::npos) << why;
}

TEST(LossScaleRuns, ErrorFeedbackAndAsyncNeedAFixedScale) {
  const TempDir dir;
  const auto failure = [&](auto change) {
    io::Config config = overflowing(dir, 4);
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
                      c.parallel.pipeline = 2;
                      c.parallel.schedule = "async";
                    }),
                    "async"));
  EXPECT_EQ(failure([](io::Config& c) {
              c.parallel.error_feedback = true;
              c.parallel.codec.fallback = "maxmin:4";
              c.train.loss_scale = 1024;
            }),
            "");
}

}  // namespace
}  // namespace espalier::loss_scale_run_test
