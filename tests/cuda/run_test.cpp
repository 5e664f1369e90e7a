// Whole runs on a device: 100 steps (40 on a simulated one) close to the CPU's, in each storage
// and type; two runs with the same bits; resuming on the other device; the arena's bytes.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "src/kernels/library_uses.h"
#include "tests/cuda/place.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::run_test {
namespace {

using testing::device_table;
using testing::Outcome;
using testing::run;
using testing::TempDir;

io::Config config_of(const TempDir& dir, const std::string& dtype) {
  io::Config config = testing::tiny_config(dir);
  config.train.dtype = dtype;
  config.train.steps = testing::compared_steps();
  config.optimizer.lr = 1e-3;
  return config;
}

Outcome run_on_device(const io::Config& config, train::TrainerOptions options = {}) {
  options.kernels = device_table();
  return run(config, 1, options);
}

/// Sums have another order on a device: a product differs by 1e-6 of its size in fp32, by 2^-8
/// where it is rounded to bf16. Adam turns noise in a gradient into whole steps, so weights drift
/// apart; losses are sums over all weights and differ far less than training changes them.
void expect_near(const Outcome& a, const Outcome& b, const io::Config& config) {
  const double allowed = config.train.dtype == "fp32" ? 2e-3 : 3e-2;
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t step = 0; step < a.losses.size(); ++step) {
    ASSERT_NEAR(a.losses[step], b.losses[step], allowed) << "step " << step + 1;
  }
  EXPECT_NEAR(a.val_loss, b.val_loss, allowed);
}

const std::vector<std::string>& ways() {
  static const std::vector<std::string> all{
      "",
      "prune",
      "prune_sparse train.recompute=selective",
      "prune_expanded sparse.index=int32",
      "blocks pruning.scope=layer",
      "prune_gradually",
      "optimizer.state_bits=8 optimizer.offload=true model.dropout=0.1 train.micro_batch=3",
      "optimizer.kind=sgd",
      "random_rounding",
  };
  return all;
}

class DeviceRuns : public testing::OnDevice, public ::testing::WithParamInterface<std::string> {};

TEST_P(DeviceRuns, StayNearTheCpuAndRepeatTheirBits) {
  for (const std::string& settings : ways()) {
    SCOPED_TRACE(settings);
    const TempDir dir;
    io::Config config = config_of(dir, GetParam());
    testing::apply_settings(config, settings);
    const Outcome first = run_on_device(config);
    EXPECT_EQ(run_on_device(config), first) << "the same again";
    config.run.graphs = false;
    EXPECT_EQ(run_on_device(config), first) << "call by call, too";
    config.run.graphs = true;
    const Outcome cpu = run(config);
    expect_near(first, cpu, config);
    EXPECT_LT(first.losses.back(), first.losses.front() - 0.1) << "it learns";
  }
}

TEST_P(DeviceRuns, StayNearTheCpuWhereBitsNeedNotRepeat) {
  for (const auto& prune : {testing::prune, testing::prune_sparse}) {
    const TempDir dir;
    io::Config config = config_of(dir, GetParam());
    prune(config);
    config.run.deterministic = false;
    expect_near(run_on_device(config), run(config), config);
  }
}

/// The device runs recorded passes: all are replayed, except those with dropout.
TEST_P(DeviceRuns, AreReplayed) {
  constexpr int64_t kFew = 12;
  for (const std::string& settings : ways()) {
    SCOPED_TRACE(settings);
    const TempDir dir;
    io::Config config = config_of(dir, GetParam());
    testing::apply_settings(config, settings);
    config.train.steps = kFew;
    config.model.dropout = 0;
    parallel::run_ranks(1, [&](parallel::Communicator& comm) {
      train::TrainerOptions options;
      options.resume = "none";
      options.kernels = device_table();
      options.on_note = [](const std::string& note) {
        EXPECT_FALSE(note.starts_with("CUDA graphs")) << note;
      };
      train::Trainer trainer(config, comm, options);
      trainer.run();
      EXPECT_GT(trainer.stage().parts().front()->replayed(), 0);
    });
  }
}

TEST_P(DeviceRuns, GoOnFromCheckpointsOfTheCpuAndBack) {
  const TempDir dir;
  io::Config config = config_of(dir, GetParam());
  testing::prune_sparse(config);
  config.optimizer.state_bits = 8;
  const Outcome whole = run(config);
  for (const bool device_first : {false, true}) {
    const auto run_part = [&](bool device, const train::TrainerOptions& part) {
      return device ? run_on_device(config, part) : run(config, 1, part);
    };
    run_part(device_first, {.stop_after = testing::compared_steps() / 2});
    Outcome resumed = run_part(!device_first, {.resume = "auto"});
    resumed.losses.insert(resumed.losses.begin(), whole.losses.begin(),
                          whole.losses.begin() + testing::compared_steps() / 2);
    expect_near(resumed, whole, config);
  }
}

/// A checkpoint changes no bit on the device either.
TEST_P(DeviceRuns, ResumeIsNoBreak) {
  const TempDir dir;
  io::Config config = config_of(dir, GetParam());
  testing::prune_sparse(config);
  const Outcome whole = run_on_device(config);
  run_on_device(config, {.stop_after = testing::compared_steps() / 2});
  Outcome resumed = run_on_device(config, {.resume = "auto"});
  resumed.losses = whole.losses;
  EXPECT_EQ(resumed, whole);
}

/// Sequences and heads for which cuDNN computes attention: in training, within graphs and without.
TEST_P(DeviceRuns, TrainWithAttentionOfALibraryAsWithOurs) {
  if (GetParam() != "bf16") {
    GTEST_SKIP() << "cuDNN's attention is of bf16";
  }
  constexpr int64_t kSteps = 20;
  const auto run_by = [](const char* who, bool graphs, bool deterministic) {
    const TempDir dir;
    io::Config config = config_of(dir, "bf16");
    config.model.width = 128;
    config.model.context = 128;
    config.train.steps = kSteps;
    config.run.graphs = graphs;
    config.run.deterministic = deterministic;
    setenv("ESPALIER_ATTENTION", who, 1);
    const Outcome outcome = run_on_device(config);
    unsetenv("ESPALIER_ATTENTION");
    return std::pair(outcome, config);
  };
  const auto [ours, config] = run_by("own", true, true);
  const Outcome library = run_by("auto", true, true).first;
  expect_near(library, ours, config);
  EXPECT_EQ(run_by("auto", false, true).first, library) << "call by call, too";
  expect_near(run_by("auto", true, false).first, ours, config);
  for (const auto& [operation, who] : kernels::library_uses()) {
    if (operation.find("x 128 positions") != std::string::npos) {
      EXPECT_TRUE(who.starts_with("cuDNN, engine")) << operation << ": " << who;
    }
  }
}

/// Where masks are known in advance the plan equals the arena's use: state, activations, workspace.
TEST_P(DeviceRuns, HoldWhatWasPlanned) {
  for (const char* storage : {"dense", "expanded", "sparse"}) {
    for (const bool offload : {false, true}) {
      SCOPED_TRACE(storage);
      const TempDir dir;
      io::Config config = config_of(dir, GetParam());
      testing::prune(config);
      config.train.steps = 5;
      config.pruning.method = "random";
      config.pruning.scope = "layer";
      config.sparse.storage.fallback = storage;
      config.sparse.index.fallback = "bitmap";
      config.optimizer.offload = offload;
      parallel::run_ranks(1, [&](parallel::Communicator& comm) {
        train::TrainerOptions options;
        options.resume = "none";
        options.kernels = device_table();
        train::Trainer trainer(config, comm, options);
        trainer.run();
        const size_t peak = trainer.arena().total().peak;
        const size_t planned = trainer.fit().plan.needed();
        EXPECT_GE(peak, planned);
        // Plans do not include cuSPARSE's workspaces.
        const bool library = std::string_view(storage) == "sparse";
        EXPECT_LE(peak, planned + (library ? size_t{64} << 20U : 0));
        EXPECT_EQ(trainer.arena().use(Memory::moment).now == 0, offload);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, DeviceRuns, ::testing::Values("fp32", "bf16", "fp16"));

}  // namespace
}  // namespace espalier::run_test
