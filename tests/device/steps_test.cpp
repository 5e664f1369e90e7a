// Steps enqueued while the one before runs. The host does not wait for work that it has enqueued in
// the same step, on one device and on several linked by NCCL. A failed step leaves the state, the
// message and the files of a run that never enqueued the next one.
#include <atomic>
#include <cmath>

#include "tests/device/late_runs.h"

namespace espalier::steps_test {
namespace {

using ::testing::_;
using ::testing::Each;
using testing::Outcome;
using testing::RanksWay;
using ::testing::SizeIs;
using testing::TempDir;

/// Tasks of the newest enqueued step that the host has waited for when the step before is reported:
/// by step from the third to the last but one, summed over all queues of a rank's device.
std::vector<int64_t> young_waits(const io::Config& config, int ranks, int of_rank = 0) {
  std::vector<int64_t> waits;
  testing::on_ranks(ranks, [&](parallel::Communicator& comm) {
    train::TrainerOptions options = testing::late_options();
    simt::SimulatedDevice* device = nullptr;
    std::map<const simt::Queue*, int64_t> enqueued;  // up to the step before the last
    options.on_step = [&](const train::StepReport& report) {
      int64_t young = 0;
      for (const simt::Queue* queue : device->queues()) {
        young += std::max<int64_t>(queue->waited_until() - enqueued[queue], 0);
        enqueued[queue] = queue->enqueued();
      }
      if (comm.rank() == of_rank && report.step > 2 && report.step < config.train.steps) {
        waits.push_back(young);
      }
    };
    train::Trainer trainer(config, comm, options);
    device = &dynamic_cast<simt::GuardedQueue&>(*trainer.stage().stream().queue()).device();
    trainer.run();
  });
  return waits;
}

/// The first step does all timing of codecs.
const std::vector<RanksWay>& ways() {
  static const std::vector<RanksWay> all{
      {1, ""},
      {1, "prune_sparse"},
      {1, "prune_expanded"},
      {1, "blocks"},
      {1, "prune_sparse optimizer.kind=sgd optimizer.offload=true optimizer.state_bits=8"},
      {1, "train.micro_batch=3 model.dropout=0.1 train.recompute=full"},
      {2, ""},
      {2, "random_rounding"},
      {3, R"(prune_expanded codec:maxmin:4 parallel.error_feedback=true
             parallel.rounding=stochastic)"},
      {2, R"(codec:linear8 parallel.codec={default="linear8","*.mlp.*"="maxmin:4"}
             parallel.error_feedback=true)"},
      {2, "parallel.reduction=nccl"},
      {2, "codec:fastest"},
      {3, "codec:adaptive-time"},
      {2, "codec:maxmin:4 parallel.reduction=auto"},
      {3, "prune_sparse parallel.zero=1"},
      {2, "codec:maxmin:8 parallel.zero=1 parallel.overlap=false"},
      {3, "prune_sparse parallel.zero=1 parallel.value_codec=maxmin:4 parallel.codec_min_size=64"},
  };
  return all;
}

class Steps : public ::testing::Test {
 protected:
  const testing::LinkedDevices linked_;
};

TEST_F(Steps, WaitForNothingOfTheirOwn) {
  testing::for_ways(ways(), 9, [](io::Config config, int ranks) {
    config.train.eval_every = 0;
    config.pruning.at_step = 0;
    config.parallel.check_every = 0;
    EXPECT_THAT(young_waits(config, ranks), AllOf(SizeIs(6), Each(0)));
  });
}

/// A round of AdaPrec ends with step 5. The step after it has none before it that is still pending,
/// so its report waits for it.
TEST_F(Steps, WaitForNothingOfTheirOwnAfterARoundOfAdaPrec) {
  const std::vector<RanksWay> ways{{2, "codec:adaprec:100:5"}};
  testing::for_ways(ways, 9, [](io::Config config, int ranks) {
    config.train.eval_every = 0;
    config.pruning.at_step = 0;
    config.parallel.check_every = 0;
    const std::vector<int64_t> waits = young_waits(config, ranks);
    EXPECT_THAT(waits, ElementsAre(0, 0, 0, _, 0, 0));
  });
}

struct PipelineWay {
  std::string schedule;
  int ranks = 2;
  std::string settings{};
};

/// Pipelines of two stages.
const std::vector<PipelineWay>& pipelines() {
  static const std::vector<PipelineWay> all{
      {"1f1b"},
      {"gpipe", 2, "model.tie_embeddings=true"},
      {"zb-h1", 4, "prune_sparse"},
      {"interleaved", 4,
       "model.tie_embeddings=true train.micro_batch=1 parallel.zero=1 codec:maxmin:8"},
      {"message-driven", 2, "parallel.activation_codec=maxmin:8"},
  };
  return all;
}

io::Config pipeline_config(const TempDir& dir, const std::string& dtype, const PipelineWay& way) {
  io::Config config = testing::tiny_config(dir);
  config.train.dtype = dtype;
  config.train.steps = 9;
  config.train.micro_batch = 3;
  config.parallel.pipeline = 2;
  config.parallel.schedule = way.schedule;
  config.parallel.partition =
      way.schedule == "interleaved" ? std::vector<int64_t>{1, 1, 1, 1} : std::vector<int64_t>{2, 2};
  config.parallel.check_every = 0;
  testing::apply_settings(config, way.settings);
  config.pruning.at_step = 0;
  return config;
}

TEST_F(Steps, OfPipelinesWaitForNothingOfTheirOwn) {
  size_t turn = 0;
  for (const PipelineWay& way : pipelines()) {
    const std::string& dtype = testing::late_dtypes()[turn++ % 2];
    SCOPED_TRACE(way.schedule + " in " + dtype);
    const TempDir dir;
    for (const int rank : {0, way.ranks - 1}) {
      EXPECT_THAT(young_waits(pipeline_config(dir, dtype, way), way.ranks, rank),
                  AllOf(SizeIs(6), Each(0)));
    }
  }
}

/// Settings whose norm the host must sum: the test detects these waits.
TEST_F(Steps, WaitForTheNormWhereStagesHaveNoNccl) {
  const TempDir dir;
  io::Config config = pipeline_config(dir, "fp32", {.schedule = "1f1b"});
  config.parallel.device_link = "host";
  EXPECT_THAT(young_waits(config, 2), AllOf(SizeIs(6), Each(::testing::Gt(0))));
}

/// The fault, and the calls for a gradient of the loss that it affects, counted as they run on each
/// rank: for a recorded pass, in each of its replays.
enum class Wrong : uint8_t { nothing, gradient, loss };
struct Plan {
  Wrong what = Wrong::nothing;
  std::vector<int64_t> calls{};
  int64_t begun = 0;

  bool wrong_now(Wrong question) const {
    return what == question && std::ranges::find(calls, begun - 1) != calls.end();
  }
};
thread_local Plan plan;

/// Runs a task in the order of the device's kernels; the task may write device memory.
void enqueue(Stream& stream, std::function<void()> task) {
  if (auto* queue = dynamic_cast<simt::Queue*>(stream.queue()); queue != nullptr) {
    queue->enqueue(std::move(task));
  } else {
    task();
  }
}

void fill(Tensor x, float value) {
  Arena arena;
  Stream stream(arena, 1);
  x.on_device = false;
  kernels::by_name("cpu").fill(stream, {.x = x, .value = value});
}

template <const kernels::Kernels& (*kTable)()>
void spoiled(Stream& stream, const kernels::CrossEntropyArgs& args) {
  if (!args.dlogits) {
    kTable().cross_entropy(stream, args);
    return;
  }
  Plan* const of_rank = &plan;
  // The loss becomes infinite for rows whose target is in this half; their gradients stay finite.
  enqueue(stream, [of_rank, half = args.logits.column_range(0, args.logits.cols() / 2)] {
    ++of_rank->begun;
    if (of_rank->wrong_now(Wrong::loss)) {
      fill(half, -HUGE_VALF);
    }
  });
  kTable().cross_entropy(stream, args);
  enqueue(stream, [of_rank, row = args.dlogits.row_range(0, 1)] {
    if (of_rank->wrong_now(Wrong::gradient)) {
      fill(row, std::nanf(""));
    }
  });
}

const kernels::Kernels& cpu_table() { return kernels::by_name("cpu"); }

template <const kernels::Kernels& (*kTable)()>
const kernels::Kernels& spoiled_table() {
  static const kernels::Kernels table = [] {
    kernels::Kernels made = kTable();
    made.cross_entropy = spoiled<kTable>;
    return made;
  }();
  return table;
}

const kernels::Kernels& table_of(bool late) {
  return late ? spoiled_table<testing::late_table>() : spoiled_table<cpu_table>();
}

/// How a run ended, on rank 0.
struct End {
  std::string message;
  Outcome state;
  std::vector<std::vector<float>> common;  ///< values that compute reads, by parameter
  std::vector<nlohmann::json> metrics;
  std::vector<std::string> checkpoints;
  int64_t calls = 0;  ///< of the last rank
  bool operator==(const End&) const = default;
};

/// The plan is that of the last rank.
End end_of(const io::Config& config, int ranks, bool late, const Plan& wrong,
           int64_t stop_after = 0) {
  End end;
  testing::on_ranks(ranks, [&](parallel::Communicator& comm) {
    plan = comm.rank() + 1 == ranks ? wrong : Plan();
    train::Trainer trainer(
        config, comm, {.resume = "none", .stop_after = stop_after, .kernels = &table_of(late)});
    std::string message;
    try {
      trainer.run();
    } catch (const Failure& failure) {
      message = failure.what();
    }
    Outcome state = testing::outcome_of(trainer);  // waits for the device
    sparse::Store& store = trainer.stage().store();
    if (comm.rank() == 0) {
      for (const sparse::Parameter& parameter : store.parameters()) {
        end.common.push_back(store.values(parameter));
      }
      end.message = message;
      end.state = std::move(state);
    }
    if (comm.rank() + 1 == ranks) {
      end.calls = plan.begun;
    }
  });
  end.metrics = testing::metrics_without_times(config);
  for (const auto& file :
       std::filesystem::directory_iterator(std::filesystem::path(config.run.out) / "checkpoints")) {
    end.checkpoints.push_back(file.path().filename());
  }
  std::ranges::sort(end.checkpoints);
  return end;
}

/// A step that is not finite ends the run as on the CPU, although the device has already enqueued
/// the next one: with the CPU's message, and the state, the metrics and the checkpoints before it.
void ends_as_on_the_cpu(const io::Config& config, int ranks, const std::string& link = "auto") {
  constexpr int64_t kStep = 5;
  const End whole = end_of(config, ranks, false, {});
  const End before = end_of(config, ranks, false, {}, kStep - 1);
  const int64_t a_step = whole.calls / config.train.steps;
  ASSERT_EQ(whole.calls % config.train.steps, 0);
  EXPECT_EQ(whole.message, "");
  for (const Wrong what : {Wrong::gradient, Wrong::loss}) {
    // Only the last micro-batch of the step; and once more, when the step is repeated to find the
    // gradients that are not finite.
    const Plan wrong{.what = what, .calls = {kStep * a_step - 1, (kStep + 2) * a_step - 1}};
    End here = end_of(config, ranks, false, wrong);
    io::Config linked = config;
    linked.parallel.device_link = link;
    End there = end_of(linked, ranks, true, wrong);
    EXPECT_THAT(
        here.message,
        HasSubstr(
            what == Wrong::loss
                ? "the loss is infinite at step 5: training has diverged, stopped before the update"
                : "the gradient norm is nan at step 5, in "));
    EXPECT_THAT(here.message, HasSubstr("step-000003.h5"));
    EXPECT_EQ(here.state, before.state);
    EXPECT_EQ(here.common, before.common);
    EXPECT_THAT(here.metrics, SizeIs(kStep - 1));
    EXPECT_THAT(here.checkpoints, ::testing::ElementsAre("step-000003.h5"));
    EXPECT_EQ(here.calls, kStep * a_step);
    EXPECT_EQ(there.calls, (kStep + (what == Wrong::loss ? 1 : 2)) * a_step);
    here.calls = there.calls = 0;
    EXPECT_EQ(there.message, here.message);
    EXPECT_EQ(there, here);
  }
}

void save_at_three(io::Config& config) {
  config.train.steps = 8;
  config.train.checkpoint_every = 3;
  config.parallel.check_every = 0;
}

TEST_F(Steps, ThatGoWrongChangeNothing) {
  const std::vector<RanksWay> wrong{
      {1, ""},
      {1, "prune_sparse pruning.at_step=2 train.micro_batch=3 optimizer.state_bits=8"},
      {1, R"(prune_expanded pruning.at_step=2 sparse.index=bitmap optimizer.kind=sgd
             optimizer.clip=0.0)"}};
  testing::for_ways(wrong, 8, [](io::Config config, int) {
    save_at_three(config);
    ends_as_on_the_cpu(config, 1);
  });
}

TEST_F(Steps, ThatGoWrongOnOneRankChangeNothingOnAny) {
  for (const auto& [zero, values, dtype, link] : {std::tuple{0, "fp32", "fp32", "nccl"},
                                                  {0, "fp32", "bf16", "host"},
                                                  {1, "fp32", "bf16", "nccl"},
                                                  {1, "maxmin:2", "fp32", "nccl"},
                                                  {1, "maxmin:2", "bf16", "host"}}) {
    SCOPED_TRACE(fmt::format("zero {}, values in {}, {} by {}", zero, values, dtype, link));
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = dtype;
    save_at_three(config);
    config.parallel.zero = zero;
    config.parallel.value_codec.fallback = values;
    ends_as_on_the_cpu(config, 2, link);
  }
}

TEST_F(Steps, ThatGoWrongInAPipelineChangeNothingOnAny) {
  for (const auto& [tied, dtype, link] :
       {std::tuple{false, "fp32", "nccl"}, {true, "bf16", "nccl"}, {false, "bf16", "host"}}) {
    SCOPED_TRACE(fmt::format("tied {}, {} by {}", tied, dtype, link));
    const TempDir dir;
    io::Config config = pipeline_config(dir, dtype, {.schedule = "1f1b", .ranks = 4});
    save_at_three(config);
    config.model.tie_embeddings = tied;
    config.parallel.zero = tied ? 1 : 0;
    ends_as_on_the_cpu(config, 4, link);
  }
}

/// A requested end comes one step later at most, with that step's checkpoint.
TEST_F(Steps, EndOnRequest) {
  const TempDir dir;
  const io::Config config = testing::tiny_config(dir);
  std::atomic<bool> stop = false;
  train::TrainerOptions options = testing::late_options();
  options.stop_requested = [&] { return stop.load(); };
  options.on_step = [&](const train::StepReport& report) { stop = report.step >= 4; };
  int64_t steps = 0;
  Outcome late;
  testing::on_ranks(1, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, options);
    const train::RunResult result = trainer.run();
    EXPECT_FALSE(result.finished);
    steps = result.steps;
    late = testing::outcome_of(trainer);
  });
  EXPECT_GE(steps, 5);
  EXPECT_LE(steps, 6);
  EXPECT_THAT(testing::metrics_without_times(config), SizeIs(steps));
  EXPECT_TRUE(
      std::filesystem::exists(dir / "run" / "checkpoints" / fmt::format("step-{:06d}.h5", steps)));
  Outcome here = testing::run(config, 1, {.stop_after = steps});
  here.losses.clear();
  here.val_loss = 0;
  EXPECT_EQ(late, here);
}

}  // namespace
}  // namespace espalier::steps_test
