// Whole runs on a device have the bits of the CPU's: every storage, type, pruning and form of
// state, and the values in metrics.jsonl of each step.
#include <numeric>
#include <utility>

#include "src/core/mirror.h"
#include "tests/device/late_runs.h"
#include "tests/support/event_files.h"

namespace espalier::run_test {
namespace {

using testing::late_options;
using testing::late_table;
using testing::Outcome;
using testing::run;
using testing::run_late;
using testing::TempDir;
using testing::tiny_config;

const std::vector<testing::RanksWay>& ways() {
  static const std::vector<testing::RanksWay> all{
      {1, ""},
      {1, "prune"},
      {1, "prune_sparse"},
      {1, "prune_expanded"},
      {1, "prune_gradually"},
      {1, "move_masks"},
      {1, "prune_sparse sparse.index=int32"},
      {1, "blocks"},
      {1, "optimizer.state_bits=8"},
      {1, "optimizer.kind=sgd"},
      {1, "prune_gradually random_rounding optimizer.offload=true"},
      {1, "prune_gradually optimizer.offload=true"},
      {1, "prune_sparse optimizer.offload=true optimizer.state_bits=8"},
      {1, "prune_expanded train.recompute=selective"},
      {1, "prune_sparse train.recompute=full"},
      {1, "prune_expanded train.micro_batch=4 train.eval_every=2"},
      {1, "train.micro_batch=3 model.dropout=0.1 train.eval_every=4"},
      {1, "prune_gradually pruning.every=1 train.eval_every=1 train.checkpoint_every=1"},
  };
  return all;
}

/// Eight steps: masks change at steps 2, 3, 4, 5, 6 and 8.
TEST(LateRuns, HaveTheBitsAndMetricsOfTheCpu) {
  for (const std::string& dtype : testing::late_dtypes()) {
    const auto body = [](const io::Config& config, int) {
      const Outcome want = run(config);
      const auto metrics = testing::metrics_without_times(config);
      EXPECT_EQ(run_late(config), want);
      EXPECT_EQ(testing::metrics_without_times(config), metrics);
    };
    testing::for_ways(ways(), 8, body, {dtype});
  }
}

TEST(LateRuns, HaveTheHistogramsOfTheCpu) {
  const std::string settings = "run.tensorboard=true train.eval_every=3 ";
  const auto body = [](const io::Config& config, int) {
    const std::filesystem::path folder = std::filesystem::path(config.run.out) / "tensorboard";
    run(config);
    const auto want = testing::shown_events(folder);
    run_late(config);
    const auto got = testing::shown_events(folder);
    for (const int64_t step : {3, 6, 8}) {
      EXPECT_FALSE(want.at(step).histograms.empty());
      EXPECT_TRUE(got.at(step).histograms == want.at(step).histograms) << step;
    }
  };
  testing::for_ways({{1, settings}, {1, settings + "prune_sparse"}}, 8, body);
}

/// The plan equals the use of the device's arena, and a budget limits the device's memory.
TEST(LateRuns, FitTheirPlan) {
  testing::for_ways(ways(), 12, [](io::Config config, int) {
    config.train.memory_budget = "64MiB";
    testing::train_late(config, 1, [](train::Trainer& trainer, const auto&) {
      const train::MemoryPlan& plan = trainer.fit().plan;
      EXPECT_EQ(plan.outside_arena, 0U);
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
  });
}

/// Kernels, copies and replays that the host enqueues in the last step but one, which has no
/// evaluation, and replays of the run.
struct Enqueued {
  int64_t calls = 0, replays = 0;
  std::vector<std::string> notes;
};
Enqueued enqueued_by(const io::Config& config) {
  Enqueued enqueued;
  testing::on_ranks(1, [&](parallel::Communicator& comm) {
    train::TrainerOptions options = late_options();
    options.on_note = [&](const std::string& note) { enqueued.notes.push_back(note); };
    const simt::Queue* queue = nullptr;
    const simt::Queue* side = nullptr;
    int64_t before = 0;
    options.on_step = [&](const train::StepReport& report) {
      const int64_t now = queue->calls() + side->calls();
      const int64_t calls = now - std::exchange(before, now);
      enqueued.calls = report.step < config.train.steps ? calls : enqueued.calls;
    };
    train::Trainer trainer(config, comm, options);
    Stream& stream = trainer.stage().stream();
    queue = dynamic_cast<const simt::Queue*>(stream.queue());
    side = dynamic_cast<const simt::Queue*>(stream.side()->queue());
    trainer.run();
    for (const auto& part : trainer.stage().parts()) {
      enqueued.replays += part->replayed();
    }
    EXPECT_EQ(queue->replays(), enqueued.replays);
  });
  return enqueued;
}

/// Cost of one more micro-batch in a step: a forward and a backward, two feeds, a copy of losses.
TEST(LateRuns, EnqueueAMicroBatchInFiveCalls) {
  testing::for_ways(ways(), 12, [](io::Config config, int) {
    if (config.model.dropout > 0) {
      return;
    }
    config.train.eval_every = 0;
    config.pruning.to_step = config.pruning.gradual() ? 5 : config.pruning.to_step;  // not the last
    config.train.micro_batch = 12;
    const Enqueued whole = enqueued_by(config);
    config.train.micro_batch = 3;
    const Enqueued parts = enqueued_by(config);
    EXPECT_EQ(parts.calls - whole.calls, 3 * 5);
    EXPECT_GT(whole.replays, 0);
    EXPECT_GT(parts.replays, whole.replays);
    config.run.graphs = false;
    const Enqueued plain = enqueued_by(config);
    EXPECT_EQ(plain.replays, 0);
    EXPECT_GT(plain.calls, parts.calls + 100);
  });
}

/// Several micro-batches in flight, in one part or more, each in its own memory.
TEST(LateRuns, ReplayPartsThatStepByThemselves) {
  for (const auto& [prediction, dtype] :
       {std::pair{"none", "fp32"}, {"stash", "bf16"}, {"spectrain", "bf16"}}) {
    SCOPED_TRACE(prediction);
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = dtype;
    config.train.micro_batch = 3;
    testing::prune_expanded(config);
    config.parallel.schedule = "async";
    config.parallel.delay_stages = 3;
    config.parallel.weight_prediction = prediction;
    EXPECT_EQ(run_late(config), run(config));
    EXPECT_GT(enqueued_by(config).replays, 100);
  }
}

/// Dropout masks differ in each step.
TEST(Dropout, IsEnqueuedCallByCall) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.model.dropout = 0.1;
  EXPECT_EQ(enqueued_by(config).replays, 0);
}

/// Wherever the device refuses to record, results stay the same, and one note reports it.
TEST(LateRuns, GoOnWhereNothingIsRecorded) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.train.dtype = "bf16";
  config.train.micro_batch = 4;
  config.train.steps = 6;
  testing::prune_expanded(config);
  const Outcome whole = run(config);
  for (const int64_t call : {0, 1, 17, 60, 1'000'000}) {
    SCOPED_TRACE(call);
    simt::refuse_recordings(call);
    EXPECT_EQ(run_late(config), whole);
    const Enqueued enqueued = enqueued_by(config);
    simt::refuse_recordings(-1);
    EXPECT_EQ(enqueued.replays, 0);
    EXPECT_EQ(std::ranges::count_if(
                  enqueued.notes, [](const auto& note) { return note.starts_with("CUDA graphs"); }),
              1);
  }
}

/// A checkpoint does not depend on the memory that holds the state: one run in parts, on the CPU,
/// on the device, offloaded, on the device, and on the CPU.
TEST(LateRuns, GoOnWithStateInOtherMemory) {
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    SCOPED_TRACE(dtype);
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = dtype;
    config.train.steps = 10;
    config.optimizer.state_bits = 8;
    testing::prune_sparse(config);
    const Outcome whole = run(config);
    Outcome resumed;
    int64_t stop = 0;
    for (const std::string place : {"cpu", "device", "offloaded", "device", "cpu"}) {
      stop += 2;
      const train::TrainerOptions part{.resume = stop == 2 ? "none" : "auto",
                                       .stop_after = stop < 10 ? stop : 0};
      config.optimizer.offload = place == "offloaded";
      resumed = place == "cpu" ? run(config, 1, part) : run_late(config, 1, part);
    }
    resumed.losses = whole.losses;
    EXPECT_EQ(resumed, whole);
  }
}

/// Offloaded state is in pinned memory, all of it, and planned to the byte. The size of the model
/// state does not change.
TEST(LateRuns, OffloadWhatTheOptimizerKeeps) {
  for (const auto& [bits, dtype] : {std::pair{32, "fp32"}, {32, "bf16"}, {8, "bf16"}}) {
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = dtype;
    config.train.steps = 4;
    config.model.width = 128;
    config.pruning.method = "random";
    config.pruning.scope = "layer";
    config.optimizer.state_bits = bits;
    size_t state = 0;
    for (const bool offload : {false, true}) {
      config.optimizer.offload = offload;
      testing::train_late(config, 1, [&](train::Trainer& trainer, const auto&) {
        Arena& device = trainer.arena();
        for (const Memory kind : {Memory::master, Memory::moment}) {
          const auto k = static_cast<size_t>(kind);
          const Arena& holds = offload ? device.host() : device;
          EXPECT_EQ((offload ? device : device.host()).use(kind).peak, 0U) << name_of(kind);
          const bool none = kind == Memory::master && config.train.dtype == "fp32";
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
  testing::train_late(config, 1, [&](train::Trainer& trainer, const auto&) {
    Stream& stream = trainer.stage().stream();
    const auto* side = dynamic_cast<const simt::Queue*>(stream.side()->queue());
    int64_t weights = 0;
    for (const sparse::Parameter& parameter : trainer.stage().store().parameters()) {
      weights += parameter.full() || parameter.storage != sparse::Storage::expanded ? 0 : 1;
    }
    // In each pass all but the first; a scatter and a wait each.
    const int64_t passes = 2 * (config.train.steps - 1);
    EXPECT_GE(side->enqueued(), 2 * passes * (weights - 1));
    const size_t largest = static_cast<size_t>(3 * config.model.width * config.model.width) * 4;
    EXPECT_GE(trainer.arena().use(Memory::scratch).now, 2 * largest);
  });
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
    all.push_back(static_cast<float>(stage.evaluate(1).sum));
  }
  return all;
}

TEST(LateRuns, AnswerAsTheCpu) {
  for (const std::string& dtype : testing::late_dtypes()) {
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = dtype;
    EXPECT_EQ(answers(config, late_table()), answers(config, kernels::by_name("cpu")));
  }
}

/// The fastest storage may differ from run to run; a choice is always made.
TEST(LateRuns, TimeTheirStorages) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.train.dtype = "bf16";
  testing::prune(config);
  config.sparse.storage.fallback = "auto";
  EXPECT_EQ(run_late(config).losses.size(), static_cast<size_t>(config.train.steps));
}

}  // namespace
}  // namespace espalier::run_test
