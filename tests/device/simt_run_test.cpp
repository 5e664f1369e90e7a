// The whole trainer on the kernels of table "cuda" in the harness: losses and weights are close to
// the CPU's, two runs have the same bits, and each resumes the other's checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/kernels/cuda/table.h"
#include "tests/simt/queue.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier {
namespace {

using testing::Outcome;
using testing::run;
using testing::TempDir;

/// Threads are fibers here, so the network has only a few thousand weights.
io::Config small_config(const TempDir& dir) {
  io::Config config = testing::tiny_config(dir);
  config.model.layers = 1;
  config.model.width = 32;
  config.model.context = 8;
  config.train.global_batch = 4;
  config.train.micro_batch = 2;
  config.train.steps = 6;
  config.train.eval_batches = 1;
  config.optimizer.lr = 1e-3;
  return config;
}

Outcome run_simt(const io::Config& config, train::TrainerOptions options = {}) {
  options.kernels = &kernels::cuda_simt::table();
  return run(config, 1, options);
}

/// Weights by their positions in the dense parameter.
std::map<int32_t, double> placed(const Outcome& outcome, const std::string& name) {
  std::map<int32_t, double> weights;
  const auto& positions = outcome.positions.at(name);
  for (size_t k = 0; k < positions.size(); ++k) {
    weights[positions[k]] = static_cast<double>(outcome.values.at(name)[k]);
  }
  return weights;
}

/// Sums have another order: relative differences of 1e-6 in fp32 and 1e-2 in 16 bits. Adam may turn
/// these into a whole step where a gradient is itself noise, and they may decide between two
/// weights of nearly the same magnitude when masks are chosen.
void expect_near(const Outcome& a, const Outcome& b, const io::Config& config) {
  const bool half = config.train.dtype != "fp32";
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t step = 0; step < a.losses.size(); ++step) {
    EXPECT_NEAR(a.losses[step], b.losses[step], half ? 2e-2 : 1e-5) << "step " << step + 1;
  }
  EXPECT_NEAR(a.val_loss, b.val_loss, half ? 2e-2 : 1e-5);
  const auto moved = static_cast<double>(config.train.steps) * config.optimizer.lr;
  for (const auto& [name, values] : a.values) {
    const auto others = placed(b, name);
    double sum = 0;
    size_t both = 0;
    for (const auto& [place, value] : placed(a, name)) {
      if (const auto found = others.find(place); found != others.end()) {
        sum += std::abs(value - found->second);
        ++both;
      }
    }
    const auto count = static_cast<double>(std::max<size_t>(values.size(), 1));
    EXPECT_GE(static_cast<double>(both), 0.97 * static_cast<double>(values.size())) << name;
    EXPECT_LT(sum / count, (half ? 0.3 : 0.01) * moved) << name;
  }
}

const std::vector<testing::Way>& ways() {
  static const std::vector<testing::Way> all{
      {"dense", [](io::Config&) {}},
      {"masked",
       [](io::Config& config) {
         testing::prune(config);
         config.pruning.at_step = 2;
       }},
      {"sparse",
       [](io::Config& config) {
         testing::prune_sparse(config);
         config.pruning.at_step = 0;
         config.train.recompute = "selective";
       }},
      {"expanded",
       [](io::Config& config) {
         testing::prune_expanded(config);
         config.pruning.at_step = 0;
         config.sparse.index.fallback = "int32";
       }},
      {"block",
       [](io::Config& config) {
         testing::prune(config);
         config.pruning.at_step = 0;
         config.pruning.method = "block";
         config.pruning.scope = "layer";
         config.pruning.block = 16;
         config.sparse.storage.fallback = "block";
       }},
      {"heads of 64 columns and two tiles of rows",
       [](io::Config& config) {
         config.model.width = 64;
         config.model.heads = 1;
         config.model.context = 72;
         config.train.global_batch = 2;
         config.train.micro_batch = 1;
       }},
      {"heads of 64 columns, bits that need not repeat",
       [](io::Config& config) {
         config.model.width = 64;
         config.model.heads = 1;
         config.model.context = 72;
         config.train.global_batch = 2;
         config.train.micro_batch = 1;
         config.run.deterministic = false;
       }},
      {"updates rounded at random",
       [](io::Config& config) { config.train.master_copy = config.train.dtype == "fp32"; }},
      {"8 bits and dropout",
       [](io::Config& config) {
         config.optimizer.state_bits = 8;
         config.optimizer.offload = true;
         config.model.dropout = 0.1;
       }},
  };
  return all;
}

void is_near_the_cpu(const std::string& dtype, const testing::Way& way) {
  SCOPED_TRACE(way.name);
  const TempDir dir;
  io::Config config = small_config(dir);
  testing::take_type(config, dtype);
  way.apply(config);
  const Outcome simt = run_simt(config);
  expect_near(simt, run(config), config);
  if (way.name == "sparse") {
    EXPECT_EQ(run_simt(config), simt) << "the same again";
  }
  config.run.graphs = false;
  EXPECT_EQ(run_simt(config), simt) << "call by call";
}

class SimtRuns : public ::testing::TestWithParam<std::string> {};

TEST_P(SimtRuns, AreNearTheCpu) {
  for (const testing::Way& way : ways()) {
    is_near_the_cpu(GetParam(), way);
  }
}

/// Storages with their own kernels for each 16-bit type.
TEST(SimtRunsInFp16, AreNearTheCpu) {
  for (const testing::Way& way : ways()) {
    if (way.name == "expanded" || way.name == "block" || way.name.starts_with("heads of 64")) {
      is_near_the_cpu("fp16", way);
    }
  }
}

/// One call launches the kernels of a pass: a step with four times the micro-batches has as many
/// launches.
TEST_P(SimtRuns, LaunchNoKernelsInReplays) {
  for (const testing::Way& way : ways()) {
    if (way.name == "8 bits and dropout") {
      continue;
    }
    SCOPED_TRACE(way.name);
    std::vector<size_t> launches;
    for (const int64_t micro_batch : {4, 1}) {
      const TempDir dir;
      io::Config config = small_config(dir);
      testing::take_type(config, GetParam());
      way.apply(config);
      config.train.global_batch = 4;
      config.train.micro_batch = micro_batch;
      config.train.steps = 8;
      parallel::run_ranks(1, [&](parallel::Communicator& comm) {
        train::TrainerOptions options;
        options.resume = "none";
        options.kernels = &kernels::cuda_simt::table();
        const simt::Queue* queue = nullptr;
        size_t before = 0;
        size_t last = 0;
        options.on_step = [&](const train::StepReport& report) {
          const size_t now = queue->launches().size();
          last = report.step < config.train.steps ? now - std::exchange(before, now) : last;
        };
        train::Trainer trainer(config, comm, options);
        queue = dynamic_cast<const simt::Queue*>(trainer.stage().stream().queue());
        trainer.run();
        launches.push_back(last);
      });
    }
    EXPECT_EQ(launches[0], launches[1]);
  }
}

/// The plan equals the arena's peak, to the byte: workspace, activations, state.
void expect_planned(const io::Config& config) {
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    train::TrainerOptions options;
    options.resume = "none";
    options.kernels = &kernels::cuda_simt::table();
    train::Trainer trainer(config, comm, options);
    trainer.run();
    const train::MemoryPlan& plan = trainer.fit().plan;
    const Arena& arena = trainer.arena();
    for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
      EXPECT_EQ(arena.at_peak(static_cast<Memory>(kind)), plan.peak.at(kind))
          << name_of(static_cast<Memory>(kind));
    }
    EXPECT_EQ(arena.total().peak, plan.needed());
  });
}

/// For masks known in advance.
TEST_P(SimtRuns, HoldWhatWasPlanned) {
  for (const char* storage : {"none", "dense", "expanded", "sparse", "block"}) {
    for (const bool later : {false, true}) {
      const TempDir dir;
      io::Config config = small_config(dir);
      testing::take_type(config, GetParam());
      config.train.steps = 3;
      config.train.recompute = later ? "selective" : "none";
      config.optimizer.offload = later;
      config.run.deterministic = !later;
      const std::string name = storage;
      SCOPED_TRACE(name + (later ? ", later" : ""));
      if (name != "none") {
        testing::prune(config);
        config.pruning.method = name == "block" ? "block" : "random";
        config.pruning.block = 16;
        config.pruning.scope = "layer";
        config.pruning.at_step = later ? 1 : -1;
        config.sparse.storage.fallback = name;
        config.sparse.index.fallback = "bitmap";
      }
      expect_planned(config);
    }
  }
}

/// Workspace of cuDNN, with gradients of scores and with a sum of dq.
TEST(SimtRunsByCudnn, HoldWhatWasPlanned) {
  for (const bool deterministic : {true, false}) {
    const TempDir dir;
    io::Config config = small_config(dir);
    testing::take_type(config, "bf16");
    config.model.context = 64;
    config.train.steps = 1;
    config.run.deterministic = deterministic;
    expect_planned(config);
  }
}

TEST_P(SimtRuns, GoOnWhereTheCpuStopped) {
  const TempDir dir;
  io::Config config = small_config(dir);
  testing::take_type(config, GetParam());
  testing::prune_sparse(config);
  config.pruning.at_step = 2;
  const Outcome whole = run(config);
  for (const bool simt_first : {false, true}) {
    train::TrainerOptions first;
    first.stop_after = 3;
    first.kernels = simt_first ? &kernels::cuda_simt::table() : nullptr;
    run(config, 1, first);
    train::TrainerOptions second;
    second.resume = "auto";
    second.kernels = simt_first ? nullptr : &kernels::cuda_simt::table();
    Outcome resumed = run(config, 1, second);
    resumed.losses.insert(resumed.losses.begin(), whole.losses.begin(), whole.losses.begin() + 3);
    expect_near(resumed, whole, config);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, SimtRuns, ::testing::Values("fp32", "bf16", "fp8"));

}  // namespace
}  // namespace espalier
