// Whole runs on a device have the bits of the CPU's: every storage, type, pruning and way to keep
// state. The host waits as often in a step of many micro-batches and layers as in one of few.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "src/core/mirror.h"
#include "tests/device/late_table.h"
#include "tests/simt/queue.h"
#include "tests/support.h"
#include "tests/ways.h"

namespace espalier {
namespace {

using testing::late_table;
using testing::Outcome;
using testing::run;
using testing::TempDir;
using testing::tiny_config;

Outcome run_late(const io::Config& config, int ranks = 1, train::TrainerOptions options = {}) {
  options.kernels = &late_table();
  return run(config, ranks, options);
}

const std::vector<testing::Way>& ways() {
  static const std::vector<testing::Way> all{
      {"dense", [](io::Config&) {}},
      {"masked", testing::prune},
      {"sparse", testing::prune_sparse},
      {"expanded", testing::prune_expanded},
      {"gradual", testing::prune_gradually},
      {"rigl", testing::move_masks},
      {"int32",
       [](io::Config& config) {
         testing::prune_sparse(config);
         config.sparse.index.fallback = "int32";
       }},
      {"block",
       [](io::Config& config) {
         testing::prune(config);
         config.pruning.method = "block";
         config.pruning.block = 16;
         config.sparse.storage.fallback = "block";
       }},
      {"8 bits", [](io::Config& config) { config.optimizer.state_bits = 8; }},
      {"sgd", [](io::Config& config) { config.optimizer.kind = "sgd"; }},
      {"offload",
       [](io::Config& config) {
         testing::prune_gradually(config);
         config.optimizer.offload = true;
       }},
      {"offload, 8 bits",
       [](io::Config& config) {
         testing::prune_sparse(config);
         config.optimizer.offload = true;
         config.optimizer.state_bits = 8;
       }},
      {"recompute",
       [](io::Config& config) {
         testing::prune_sparse(config);
         config.train.recompute = "full";
       }},
      {"micro-batches",
       [](io::Config& config) {
         config.train.micro_batch = 3;
         config.model.dropout = 0.1;
         config.train.eval_every = 4;
       }},
  };
  return all;
}

class LateRuns : public ::testing::TestWithParam<std::string> {};

TEST_P(LateRuns, HaveTheBitsOfTheCpu) {
  for (const testing::Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    EXPECT_EQ(run_late(config), run(config));
  }
}

using Part = std::function<Outcome(const io::Config&, const train::TrainerOptions&)>;

/// A run that ends after half of its steps, and what goes on with its checkpoint.
void goes_on(const std::string& dtype, const Part& first, const Part& second) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.train.dtype = dtype;
  config.optimizer.state_bits = 8;
  testing::prune_sparse(config);
  const Outcome whole = run(config);
  train::TrainerOptions half;
  half.stop_after = 6;
  first(config, half);
  train::TrainerOptions rest;
  rest.resume = "auto";
  Outcome resumed = second(config, rest);
  resumed.losses = whole.losses;
  EXPECT_EQ(resumed, whole);
}

Outcome run_here(const io::Config& config, const train::TrainerOptions& options) {
  return run(config, 1, options);
}
Outcome run_there(const io::Config& config, const train::TrainerOptions& options) {
  return run_late(config, 1, options);
}
Outcome run_offloaded(io::Config config, const train::TrainerOptions& options) {
  config.optimizer.offload = true;
  return run_late(config, 1, options);
}

/// A checkpoint knows nothing of where state is.
TEST_P(LateRuns, GoOnWithStateInOtherMemory) {
  goes_on(GetParam(), run_here, run_there);
  goes_on(GetParam(), run_there, run_here);
  goes_on(GetParam(), run_there, run_offloaded);
  goes_on(GetParam(), run_offloaded, run_there);
}

/// What is offloaded is in pinned memory, all of it, and planned to the byte; the model state is as
/// large.
TEST_P(LateRuns, OffloadWhatTheOptimizerKeeps) {
  for (const int64_t bits : {32, 8}) {
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = GetParam();
    config.model.width = 128;
    config.pruning.method = "random";
    config.pruning.scope = "layer";
    config.optimizer.state_bits = bits;
    size_t state = 0;
    for (const bool offload : {false, true}) {
      config.optimizer.offload = offload;
      parallel::run_ranks(1, [&](parallel::Communicator& comm) {
        train::TrainerOptions options;
        options.resume = "none";
        options.kernels = &late_table();
        train::Trainer trainer(config, comm, options);
        trainer.run();
        Arena& device = trainer.arena();
        for (const Memory kind : {Memory::master, Memory::moment}) {
          const auto k = static_cast<size_t>(kind);
          const Arena& holds = offload ? device.host() : device;
          EXPECT_EQ((offload ? device : device.host()).use(kind).peak, 0U) << name_of(kind);
          const bool none = kind == Memory::master && GetParam() == "fp32";
          EXPECT_EQ(holds.use(kind).now > 0, !none) << name_of(kind);
          EXPECT_EQ(holds.use(kind).now,
                    offload ? trainer.fit().plan.pinned.at(k) : trainer.fit().plan.last.at(k));
        }
        const size_t all = device.model_state_bytes() + device.offloaded_bytes();
        EXPECT_EQ(all, state == 0 ? all : state);
        state = all;
      });
      const auto summary = nlohmann::json::parse(std::ifstream(dir / "run" / "summary.json"));
      EXPECT_EQ(summary["model_state_bytes"], state);
      const auto& pinned = summary["memory"]["ranks"][0]["pinned"];
      EXPECT_EQ(pinned.contains("moment"), offload);
    }
  }
}

/// How often the host waits in each step from the third on, in a run without evaluations.
std::vector<int64_t> waits_by_step(const io::Config& config) {
  std::vector<int64_t> waits;
  int64_t before = 0;
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    train::TrainerOptions options;
    options.resume = "none";
    options.kernels = &late_table();
    std::vector<const simt::Queue*> queues;
    options.on_step = [&](const train::StepReport& report) {
      int64_t now = 0;
      for (const simt::Queue* queue : queues) {
        now += queue->synchronized() + queue->waited();
      }
      if (report.step > 2 && report.step < config.train.steps) {
        waits.push_back(now - before);
      }
      before = now;
    };
    train::Trainer trainer(config, comm, options);
    Stream& stream = trainer.stage().stream();
    queues = {dynamic_cast<const simt::Queue*>(stream.queue()),
              dynamic_cast<const simt::Queue*>(stream.side()->queue())};
    trainer.run();
  });
  return waits;
}

/// Once for the losses, which may have passed long before, and once for the norm; whatever is in
/// between.
TEST_P(LateRuns, WaitTwiceAStep) {
  for (const testing::Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    config.train.eval_every = 0;
    if (config.pruning.method != "none") {
      config.pruning.method = config.pruning.method == "rigl" ? "magnitude" : config.pruning.method;
      config.pruning.every = 0;
      config.pruning.from_step = config.pruning.to_step = 0;
      config.pruning.at_step = 0;
    }
    EXPECT_EQ(waits_by_step(config), std::vector<int64_t>(9, 2));
  }
}

/// Weights are rebuilt by the other queue while products run, in all steps but the first of each
/// mask.
TEST(Expanded, IsRebuiltAhead) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  testing::prune_expanded(config);
  config.pruning.at_step = 0;
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    train::TrainerOptions options;
    options.resume = "none";
    options.kernels = &late_table();
    train::Trainer trainer(config, comm, options);
    Stream& stream = trainer.stage().stream();
    trainer.run();
    const auto* side = dynamic_cast<const simt::Queue*>(stream.side()->queue());
    int64_t weights = 0;
    for (const sparse::Parameter& parameter : trainer.stage().store().parameters()) {
      weights += parameter.full() || parameter.storage != sparse::Storage::expanded ? 0 : 1;
    }
    // Of each pass all but the first; a scatter and a wait each.
    const int64_t passes = 2 * (config.train.steps - 1);
    EXPECT_GE(side->asked(), 2 * passes * (weights - 1));
    const size_t largest = static_cast<size_t>(3 * config.model.width * config.model.width) * 4;
    EXPECT_GE(trainer.arena().use(Memory::scratch).now, 2 * largest);
  });
}

/// A plan counts what the device's arena will count, and a budget is the device's.
TEST_P(LateRuns, FitTheirPlan) {
  for (const testing::Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    config.train.memory_budget = "64MiB";
    parallel::run_ranks(1, [&](parallel::Communicator& comm) {
      train::TrainerOptions options;
      options.resume = "none";
      options.kernels = &late_table();
      train::Trainer trainer(config, comm, options);
      trainer.run();
      const train::MemoryPlan& plan = trainer.fit().plan;
      EXPECT_EQ(plan.beside, 0U);
      EXPECT_EQ(trainer.arena().use(Memory::activation).peak,
                plan.peak.at(static_cast<size_t>(Memory::activation)));
      // Masks are told apart globally: how many elements each matrix keeps is known beforehand to a
      // percent, with what pads it.
      constexpr double kSlack = 1.02;
      EXPECT_LE(static_cast<double>(trainer.arena().total().peak),
                kSlack * static_cast<double>(plan.needed()));
      for (const Memory kind : {Memory::weight, Memory::gradient, Memory::master, Memory::moment}) {
        const auto planned = static_cast<double>(plan.last.at(static_cast<size_t>(kind)));
        EXPECT_NEAR(static_cast<double>(trainer.arena().use(kind).now), planned,
                    (kSlack - 1) * planned)
            << name_of(kind);
      }
      EXPECT_EQ(trainer.arena().use(Memory::communication).peak, 0U);
      EXPECT_GT(trainer.arena().host().total().peak, 0U);
    });
  }
}

/// What tools ask of a network without training: predictions, and the loss of a micro-batch.
std::vector<float> answers(const io::Config& config, const kernels::Kernels& table) {
  constexpr int32_t kTokens = 27;
  const train::ProblemShape problem{
      .classes = kTokens, .features = config.model.context, .rows = config.model.context};
  kernels::Backend backend(table, 1);
  train::Stage stage(config, problem, backend.stream(), table, {.training = false});
  stage.store().initialise(5);
  std::vector<float> all;
  for (const size_t count : {1, 5, 16}) {
    std::vector<int32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 3);
    const Mirror logits(backend.stream(), stage.predict(tokens));
    const auto row = logits.read().host().span<float>();
    all.insert(all.end(), row.begin(), row.end());
    for (const Tensor& feed : {stage.inputs(1), stage.targets(1)}) {
      std::ranges::fill(feed.span<int32_t>(), static_cast<int32_t>(count));
    }
    all.push_back(static_cast<float>(stage.evaluate(1)));
  }
  return all;
}

TEST_P(LateRuns, AnswerAsTheCpu) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.train.dtype = GetParam();
  EXPECT_EQ(answers(config, late_table()), answers(config, kernels::by_name("cpu")));
}

/// Which storage is fastest here may differ from run to run; that it is found, not.
TEST_P(LateRuns, TimeTheirStorages) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.train.dtype = GetParam();
  testing::prune(config);
  config.sparse.storage.fallback = "auto";
  EXPECT_EQ(run_late(config).losses.size(), static_cast<size_t>(config.train.steps));
}

INSTANTIATE_TEST_SUITE_P(DTypes, LateRuns, ::testing::Values("fp32", "bf16"));

TEST(LateRunsInFp16, HaveTheBitsOfTheCpu) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.train.dtype = "fp16";
  testing::prune_expanded(config);
  config.optimizer.state_bits = 8;
  EXPECT_EQ(run_late(config), run(config));
}
TEST(LateRunsInFp16, GoOnWithStateInOtherMemory) {
  goes_on("fp16", run_here, run_there);
  goes_on("fp16", run_there, run_offloaded);
}

}  // namespace
}  // namespace espalier
