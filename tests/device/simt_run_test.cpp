// The whole trainer on the kernels of table "cuda" in the harness: losses and weights are close to
// the CPU's, two runs have the same bits, and each resumes the other's checkpoint.
#include <cmath>
#include <utility>

#include "src/kernels/cuda/table.h"
#include "tests/device/late_runs.h"

namespace espalier::simt_run_test {
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
  config.train.steps = 4;  // the last two replay
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

const std::string kTwoTiles =
    "model.width=64 model.heads=1 model.context=72 train.global_batch=2 train.micro_batch=1";

const std::vector<std::string>& ways() {
  static const std::vector<std::string> all{
      "",
      "prune pruning.at_step=2",
      "prune_sparse pruning.at_step=0 train.recompute=selective",
      "prune_expanded pruning.at_step=0 sparse.index=int32",
      "blocks pruning.at_step=0 pruning.scope=layer",
      kTwoTiles,
      kTwoTiles + " run.deterministic=false",
      "random_rounding",
      "optimizer.state_bits=8 optimizer.offload=true model.dropout=0.1",
      "family:neox train.recompute=full",
      "family:gemma",
      "family:gemma3",
      "family:qwen3 prune pruning.at_step=2",
      "family:llama prune_sparse pruning.at_step=2",
      "family:mistral",
  };
  return all;
}

/// Calls body(config) for each way, with the types in turn: products of fp16 have own kernels.
template <class Body>
void for_all_ways(const std::vector<std::string>& all, const Body& body) {
  const std::string dtypes[] = {"fp32", "bf16", "fp16"};
  size_t turn = 0;
  for (const std::string& settings : all) {
    const TempDir dir;
    io::Config config = small_config(dir);
    testing::take_type(config, dtypes[turn++ % std::size(dtypes)]);
    SCOPED_TRACE(fmt::format("\"{}\" in {}", settings, config.train.dtype));
    testing::apply_settings(config, settings);
    body(config);
  }
}

/// Near the CPU, with the same bits again, call by call.
TEST(SimtRuns, AreNearTheCpu) {
  for_all_ways(ways(), [](io::Config config) {
    const Outcome simt = run_simt(config);
    expect_near(simt, run(config), config);
    config.run.graphs = false;
    EXPECT_EQ(run_simt(config), simt);
  });
}

/// In both types of 16 bits, where kernels differ by type.
TEST(SimtRuns, AreNearTheCpuIn16Bits) {
  for (const size_t way : {2, 3, 4, 5}) {
    const std::string& settings = ways()[way];
    const auto body = [](const io::Config& config) {
      if (config.train.dtype != "fp32") {
        expect_near(run_simt(config), run(config), config);
      }
    };
    for_all_ways(std::vector<std::string>(3, settings), body);
  }
}

/// One call launches the kernels of a pass: a step with four times the micro-batches has as many
/// launches.
TEST(SimtRuns, LaunchNoKernelsInReplays) {
  for_all_ways(ways(), [](io::Config config) {
    if (config.model.dropout > 0) {
      return;  // nothing is recorded
    }
    std::vector<size_t> launches;
    for (const int64_t micro_batch : {4, 1}) {
      config.train.global_batch = 4;
      config.train.micro_batch = micro_batch;
      config.train.steps = 6;
      testing::on_ranks(1, [&](parallel::Communicator& comm) {
        train::TrainerOptions options{.resume = "none", .kernels = &kernels::cuda_simt::table()};
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
  });
}

/// For masks known in advance; types in turn.
TEST(SimtRuns, HoldWhatWasPlanned) {
  const std::string dtypes[] = {"fp32", "bf16", "fp16"};
  size_t turn = 0;
  for (const char* storage : {"none", "dense", "expanded", "sparse", "block"}) {
    for (const bool later : {false, true}) {
      const TempDir dir;
      io::Config config = small_config(dir);
      testing::take_type(config, dtypes[turn++ % std::size(dtypes)]);
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
      testing::expect_planned_exactly(config, kernels::cuda_simt::table());
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
    testing::expect_planned_exactly(config, kernels::cuda_simt::table());
  }
}

/// One run in parts: on the CPU, on the device, on the CPU.
TEST(SimtRuns, GoOnWhereTheCpuStopped) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const TempDir dir;
    io::Config config = small_config(dir);
    testing::take_type(config, dtype);
    testing::prune_sparse(config);
    config.train.steps = 6;
    config.pruning.at_step = 2;
    const Outcome whole = run(config);
    run(config, 1, {.stop_after = 2});
    run_simt(config, {.resume = "auto", .stop_after = 4});
    Outcome resumed = run(config, 1, {.resume = "auto"});
    resumed.losses.insert(resumed.losses.begin(), whole.losses.begin(), whole.losses.begin() + 4);
    expect_near(resumed, whole, config);
  }
}

}  // namespace
}  // namespace espalier::simt_run_test
