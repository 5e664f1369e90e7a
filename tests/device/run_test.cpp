// Whole runs on a device have the bits of the CPU's: every storage, type, pruning and form of
// state, and the values in metrics.jsonl of each step.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "src/core/mirror.h"
#include "tests/device/late_table.h"
#include "tests/device/told.h"
#include "tests/simt/queue.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

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
      {"updates rounded at random",
       [](io::Config& config) {
         testing::prune_gradually(config);
         config.train.master_copy = config.train.dtype == "fp32";
         config.optimizer.offload = true;
       }},
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
      {"products in 8 bits",
       [](io::Config& config) {
         testing::prune_expanded(config);
         config.train.fp8 = true;
         config.train.recompute = "selective";
       }},
      {"recompute",
       [](io::Config& config) {
         testing::prune_sparse(config);
         config.train.recompute = "full";
       }},
      {"evaluations of other sizes",
       [](io::Config& config) {
         testing::prune_expanded(config);
         config.train.micro_batch = 4;
         config.train.eval_every = 2;
       }},
      {"micro-batches",
       [](io::Config& config) {
         config.train.micro_batch = 3;
         config.model.dropout = 0.1;
         config.train.eval_every = 4;
       }},
      {"seen after each step",
       [](io::Config& config) {
         testing::prune_gradually(config);
         config.pruning.every = 1;
         config.train.eval_every = 1;
         config.train.checkpoint_every = 1;
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
    const Outcome late = run_late(config);
    const auto told = testing::told(config);
    EXPECT_EQ(late, run(config));
    EXPECT_EQ(told, testing::told(config));
  }
}

using Part = std::function<Outcome(const io::Config&, const train::TrainerOptions&)>;

/// Kernels, copies and replays that the host enqueues in the last step but one, which has no
/// evaluation, and replays of the run.
struct Asked {
  int64_t calls = 0, replays = 0;
  std::vector<std::string> notes;
};
Asked asked_by(const io::Config& config) {
  Asked asked;
  parallel::run_ranks(1, [&](parallel::Communicator& comm) {
    train::TrainerOptions options;
    options.resume = "none";
    options.kernels = &late_table();
    options.on_note = [&](const std::string& note) { asked.notes.push_back(note); };
    const simt::Queue* queue = nullptr;
    const simt::Queue* side = nullptr;
    int64_t before = 0;
    options.on_step = [&](const train::StepReport& report) {
      const int64_t now = queue->calls() + side->calls();
      const int64_t calls = now - std::exchange(before, now);
      asked.calls = report.step < config.train.steps ? calls : asked.calls;
    };
    train::Trainer trainer(config, comm, options);
    Stream& stream = trainer.stage().stream();
    queue = dynamic_cast<const simt::Queue*>(stream.queue());
    side = dynamic_cast<const simt::Queue*>(stream.side()->queue());
    trainer.run();
    for (const auto& part : trainer.stage().parts()) {
      asked.replays += part->replayed();
    }
    EXPECT_EQ(queue->replays(), asked.replays);
  });
  return asked;
}

/// Cost of one more micro-batch in a step: a forward and a backward, two feeds, a copy of losses.
TEST_P(LateRuns, AskForAMicroBatchInFiveCalls) {
  for (const testing::Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    if (config.model.dropout > 0) {
      continue;
    }
    config.train.eval_every = 0;
    config.pruning.to_step = config.pruning.gradual() ? 5 : config.pruning.to_step;  // not the last
    config.train.micro_batch = 12;
    const Asked whole = asked_by(config);
    config.train.micro_batch = 3;
    const Asked parts = asked_by(config);
    EXPECT_EQ(parts.calls - whole.calls, 3 * 5);
    EXPECT_GT(whole.replays, 0);
    EXPECT_GT(parts.replays, whole.replays);
    config.run.graphs = false;
    const Asked plain = asked_by(config);
    EXPECT_EQ(plain.replays, 0);
    EXPECT_GT(plain.calls, parts.calls + 100);
  }
}

/// Several micro-batches in flight, in one part or more, each in its own memory.
TEST_P(LateRuns, ReplayPartsThatStepByThemselves) {
  for (const char* prediction : {"none", "stash", "spectrain"}) {
    SCOPED_TRACE(prediction);
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = GetParam();
    config.train.micro_batch = 3;
    testing::prune_expanded(config);
    config.parallel.schedule = "async";
    config.parallel.delay_stages = 3;
    config.parallel.weight_prediction = prediction;
    EXPECT_EQ(run_late(config), run(config));
    EXPECT_GT(asked_by(config).replays, 100);
  }
}

/// Dropout masks differ in each step.
TEST(Dropout, IsAskedForCallByCall) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.model.dropout = 0.1;
  EXPECT_EQ(asked_by(config).replays, 0);
}

/// Wherever the device refuses to record, results stay the same, and one note reports it.
TEST_P(LateRuns, GoOnWhereNothingIsRecorded) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.train.dtype = GetParam();
  config.train.micro_batch = 4;
  testing::prune_expanded(config);
  const Outcome whole = run(config);
  for (const int64_t call : {0, 1, 17, 60, 1'000'000}) {
    SCOPED_TRACE(call);
    simt::refuse_recordings(call);
    EXPECT_EQ(run_late(config), whole);
    const Asked asked = asked_by(config);
    simt::refuse_recordings(-1);
    EXPECT_EQ(asked.replays, 0);
    EXPECT_EQ(std::ranges::count_if(
                  asked.notes, [](const auto& note) { return note.starts_with("run.graphs"); }),
              1);
  }
}

/// A run that ends after half of its steps, and the run that resumes its checkpoint.
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

/// A checkpoint does not depend on the memory that holds the state.
TEST_P(LateRuns, GoOnWithStateInOtherMemory) {
  goes_on(GetParam(), run_here, run_there);
  goes_on(GetParam(), run_there, run_here);
  goes_on(GetParam(), run_there, run_offloaded);
  goes_on(GetParam(), run_offloaded, run_there);
}

/// Offloaded state is in pinned memory, all of it, and planned to the byte. The size of the model
/// state does not change.
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

/// The second queue rebuilds weights while products run, in all steps but the first of each mask.
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
    // In each pass all but the first; a scatter and a wait each.
    const int64_t passes = 2 * (config.train.steps - 1);
    EXPECT_GE(side->asked(), 2 * passes * (weights - 1));
    const size_t largest = static_cast<size_t>(3 * config.model.width * config.model.width) * 4;
    EXPECT_GE(trainer.arena().use(Memory::scratch).now, 2 * largest);
  });
}

/// The plan equals the use of the device's arena, and a budget limits the device's memory.
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
      // Masks are chosen globally: the number of kept elements of each matrix is known in advance
      // to one percent, including padding.
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

/// Uses of a network without training: predictions, and the loss of a micro-batch.
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

/// The fastest storage may differ from run to run; a choice is always made.
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
