// Runs in 16 bits without a master copy beside the values (train.master_copy = false): updates
// round at random, with the same bits for any ownership and after a checkpoint.
#include <algorithm>

#include "src/kernels/rules/master.h"
#include "src/optim/optimizer.h"
#include "tests/support/grid.h"
#include "tests/support/settings.h"

namespace espalier::rounding_run_test {
namespace {

using namespace testing;

io::Config rounded(const TempDir& dir, const std::string& dtype) {
  io::Config config = tiny_config(dir);
  apply_settings(config, fmt::format("train.dtype={} train.master_copy=false", dtype));
  config.train.loss_scale = dtype == "fp16" ? 1024 : 0;
  config.optimizer.clip = 0.5;  // acts
  return config;
}

io::Config sharded(io::Config config) {
  config.parallel.zero = 1;
  return config;
}

class RoundedRuns : public RunTestWithParam<std::tuple<std::string, std::string>> {
 protected:
  RoundedRuns() {
    config = rounded(dir, std::get<1>(GetParam()));
    apply_settings(config, std::get<0>(GetParam()));
  }
};

TEST_P(RoundedRuns, HaveTheBitsOfAWholeOptimizer) {
  for (const int ranks : {1, 3}) {
    EXPECT_EQ(run(sharded(config), ranks), run(config, ranks)) << ranks << " ranks";
  }
}

TEST_P(RoundedRuns, HaveTheSameBitsInStages) {
  apply_settings(config, "model.layers=4 train.micro_batch=1");
  const Outcome serial = run_grid(config, 1);
  config.parallel.pipeline = 2;
  for (const char* schedule : {"1f1b", "zb-v"}) {
    config.parallel.schedule = schedule;
    expect_equal(run_grid(config, 2), serial);
  }
}

TEST_P(RoundedRuns, GoOnWithoutABreak) {
  expect_resume_is_no_break(config, 1, {3, 4, 7});
  expect_resume_is_no_break(sharded(config), 2, {3, 4, 7});
}

INSTANTIATE_TEST_SUITE_P(Ways, RoundedRuns,
                         ::testing::Combine(::testing::Values("", "eight_bits", "prune_gradually",
                                                              "move_masks",
                                                              "prune_expanded optimizer.kind=sgd"),
                                            ::testing::Values("bf16", "fp16")));

using RoundedStages = RunTest;

/// Asynchronous stages count their updates separately.
TEST_F(RoundedStages, StepByThemselvesWithTheBitsOfOneRank) {
  for (const char* prediction : {"none", "stash", "spectrain"}) {
    config = rounded(dir, "bf16");
    apply_settings(config, "model.layers=4 train.global_batch=3 parallel.schedule=async");
    config.parallel.weight_prediction = prediction;
    config.parallel.partition = {2, 1, 3};
    config.parallel.check_every = 0;
    SCOPED_TRACE(prediction);
    io::Config stages = config;
    stages.parallel.pipeline = 3;
    config.parallel.delay_stages = 3;
    expect_equal(run_grid(stages, 3), run_grid(config, 1));
  }
}

/// run_grid compares both stages' copies of one parameter.
TEST_F(RoundedStages, KeepTiedEmbeddingsTheSame) {
  config = rounded(dir, "bf16");
  apply_settings(config, "model.tie_embeddings=true train.micro_batch=1 parallel.pipeline=2");
  for (const int ranks : {2, 4}) {
    config.parallel.zero = ranks == 4 ? 1 : 0;
    EXPECT_EQ(run_grid(config, ranks).losses.size(), 12U);
  }
}

bool in_16_bits(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float x) { return to_float(to_bf16(x)) == x; });
}

using RoundedState = RunTest;

TEST_F(RoundedState, HoldsHalvesOfVectorsAlone) {
  config = rounded(dir, "bf16");
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "none"});
    trainer.run();
    sparse::Store& store = trainer.stage().store();
    size_t bytes = 0;
    bool exact = false;
    for (const sparse::Parameter& parameter : store.parameters()) {
      const bool vector = parameter.spec.shape.rank() == 1;
      const Tensor low = store.state(parameter).low;
      EXPECT_EQ(low ? low.count() : 0, vector ? parameter.size() : 0) << parameter.spec.name;
      EXPECT_TRUE(vector || in_16_bits(store.master(parameter))) << parameter.spec.name;
      exact |= !in_16_bits(store.master(parameter));
      bytes += vector ? (2 * static_cast<size_t>(parameter.size()) + 63) / 64 * 64 : 0;
    }
    EXPECT_TRUE(exact) << "vectors stay fp32";
    EXPECT_EQ(store.parts().low, bytes);
    EXPECT_EQ(trainer.arena().use(Memory::master).now, bytes);
  });
}

/// A checkpoint without a master copy, loaded with one: the master copy is the values. The reverse:
/// the values stay.
TEST_F(RoundedState, ComesFromAnyCheckpoint) {
  for (const bool before : {true, false}) {
    config = rounded(dir, "bf16");
    config.train.master_copy = before;
    const Outcome first = run(config, 1, {.stop_after = 6});
    config.train.master_copy = !before;
    parallel::run_ranks(1, [&](parallel::Communicator& comm) {
      train::Trainer trainer(config, comm, {.resume = "auto"});
      const Outcome loaded = testing::outcome_of(trainer);
      EXPECT_EQ(loaded.moments, first.moments);
      for (const sparse::Parameter& parameter : trainer.stage().store().parameters()) {
        std::vector<float> want = first.values.at(parameter.spec.name);
        for (float& x : want) {
          x = before && parameter.spec.shape.rank() > 1 ? to_float(kernels::split<bf16>(x).high)
                                                        : x;
        }
        EXPECT_EQ(loaded.values.at(parameter.spec.name), want) << parameter.spec.name;
      }
    });
    EXPECT_EQ(run(config, 1, {.resume = "auto"}).losses.size(), 6U);
  }
}

/// Half a unit in the last place, 64 times, of numbers in [1, 2): each element has its own draw in
/// each step. The sum has the deviation sqrt(64) / 2 = 4 units, and none is six off.
TEST(RoundedUpdates, DrawAnewForEachStepElementAndName) {
  constexpr int kSteps = 64;
  constexpr double kUnit = 0x1p-7;
  Arena arena;
  Stream stream(arena, 1);
  const kernels::Kernels& kernels = kernels::by_name("cpu");
  const Shape shape{50, 20};
  sparse::Store store(stream, kernels,
                      {{.name = "a", .shape = shape}, {.name = "b", .shape = shape}},
                      {.dtype = DType::bf16, .moments = 1, .master_copy = false});
  io::OptimizerConfig config;
  config.kind = "sgd";
  config.momentum = config.weight_decay = config.clip = 0;
  optim::Optimizer optimizer(store, kernels, config, 3);
  const std::vector<float> ones(1000, 1.0F);
  for (sparse::Parameter& parameter : store.parameters()) {
    store.set_values(parameter, ones);
  }
  for (int step = 0; step < kSteps; ++step) {
    std::ranges::fill(store.gradient().span<float>(), static_cast<float>(-kUnit / 2));
    EXPECT_TRUE(optimizer.step(stream, step, 1).applied);
  }
  const std::vector<float> a = store.values(store.find("a"));
  EXPECT_NE(a, store.values(store.find("b")));
  double sum = 0;
  for (const float x : a) {
    const double moved = (static_cast<double>(x) - 1) / kUnit - kSteps / 2.0;
    EXPECT_LT(std::abs(moved), 24);
    sum += moved;
  }
  EXPECT_LT(std::abs(sum) / 1000, 6 * 4 / std::sqrt(1000.0));
  EXPECT_NE(*std::ranges::min_element(a), *std::ranges::max_element(a));
}

}  // namespace
}  // namespace espalier::rounding_run_test
