// Steps enqueued while the one before runs. The host does not wait for work that it has enqueued in
// the same step, on one device and on several linked by NCCL. A failed step leaves the state, the
// message and the files of a run that never enqueued the next one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/device/told.h"
#include "tests/simt/device.h"
#include "tests/support/ways.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Outcome;
using ::testing::SizeIs;
using testing::TempDir;

/// Ranks with NCCL between their devices.
struct Linked {
  testing::FakeNccl nccl;
  Linked() { testing::while_ranks_wait() = simt::drive_queues; }
  ~Linked() { testing::while_ranks_wait() = {}; }
};

void run_ranks(int ranks, const std::function<void(parallel::Communicator&)>& body) {
  parallel::run_ranks(ranks, body, {.while_waiting = testing::while_ranks_wait()});
}

/// Tasks of the newest enqueued step that the host has waited for when the step before is reported:
/// by step from the third to the last but one, summed over all queues of a rank's device.
std::vector<int64_t> young_waits(const io::Config& config, int ranks, int of_rank = 0) {
  std::vector<int64_t> waits;
  run_ranks(ranks, [&](parallel::Communicator& comm) {
    train::TrainerOptions options;
    options.resume = "none";
    options.kernels = &testing::late_table();
    simt::PretendedDevice* device = nullptr;
    std::map<const simt::Queue*, int64_t> asked;  // up to the step before the last
    options.on_step = [&](const train::StepReport& report) {
      int64_t young = 0;
      for (const simt::Queue* queue : device->queues()) {
        young += std::max<int64_t>(queue->waited_until() - asked[queue], 0);
        asked[queue] = queue->asked();
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

struct RanksWay {
  int ranks = 1;
  testing::Way way;
};

/// The first step does all timing.
void time_codecs(io::Config& config, const std::string& codec) {
  config.parallel.codec.fallback = codec;
  config.parallel.codec_min_size = 64;
  config.parallel.codec_goal = "time";
  config.parallel.codec_trial = 5;
}

const std::vector<RanksWay>& ways() {
  static const std::vector<RanksWay> all{
      {1, {"dense", [](io::Config&) {}}},
      {1, {"sparse", testing::prune_sparse}},
      {1, {"expanded", testing::prune_expanded}},
      {1,
       {"block",
        [](io::Config& config) {
          testing::prune(config);
          config.pruning.method = "block";
          config.pruning.block = 16;
          config.sparse.storage.fallback = "block";
        }}},
      {1,
       {"offload, 8 bits, sgd",
        [](io::Config& config) {
          testing::prune_sparse(config);
          config.optimizer.kind = "sgd";
          config.optimizer.offload = true;
          config.optimizer.state_bits = 8;
        }}},
      {1,
       {"micro-batches",
        [](io::Config& config) {
          config.train.micro_batch = 3;
          config.model.dropout = 0.1;
          config.train.recompute = "full";
        }}},
      {2, {"replicas", [](io::Config&) {}}},
      {2,
       {"updates rounded at random",
        [](io::Config& config) { config.train.master_copy = config.train.dtype == "fp32"; }}},
      {3,
       {"codes",
        [](io::Config& config) {
          testing::prune_expanded(config);
          config.parallel.codec.fallback = "maxmin:4";
          config.parallel.codec_min_size = 64;
          config.parallel.error_feedback = true;
          config.parallel.rounding = "stochastic";
        }}},
      {2,
       {"factors beside codes",
        [](io::Config& config) {
          config.parallel.codec.fallback = "powersgd:2";
          config.parallel.codec.patterns = {{"*.mlp.*", "maxmin:4"}};
          config.parallel.codec_min_size = 64;
          config.parallel.powersgd_warmup = 0;
          config.parallel.error_feedback = true;
        }}},
      {2, {"NCCL's sums", [](io::Config& config) { config.parallel.reduction = "nccl"; }}},
      {2, {"fastest codecs", [](io::Config& config) { time_codecs(config, "fastest"); }}},
      {3, {"codecs by time", [](io::Config& config) { time_codecs(config, "adaptive"); }}},
      {2, {"codecs by trials", [](io::Config& config) { time_codecs(config, "adaprec"); }}},
      {2,
       {"codecs where they pay",
        [](io::Config& config) {
          time_codecs(config, "maxmin:4");
          config.parallel.reduction = "auto";
        }}},
      {3,
       {"zero",
        [](io::Config& config) {
          testing::prune_sparse(config);
          config.parallel.zero = 1;
        }}},
      {2,
       {"zero, codes, not overlapped",
        [](io::Config& config) {
          config.parallel.zero = 1;
          config.parallel.overlap = false;
          config.parallel.codec.fallback = "maxmin:8";
          config.parallel.codec_min_size = 64;
        }}},
      {3,
       {"zero, values in codes",
        [](io::Config& config) {
          testing::prune_sparse(config);
          config.parallel.zero = 1;
          config.parallel.value_codec.fallback = "maxmin:4";
          config.parallel.codec_min_size = 64;
        }}},
  };
  return all;
}

class Steps : public ::testing::TestWithParam<std::string> {};

TEST_P(Steps, WaitForNothingOfTheirOwn) {
  const Linked linked;
  for (const auto& [ranks, way] : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    config.train.eval_every = 0;
    config.pruning.at_step = 0;
    config.parallel.check_every = 0;
    EXPECT_THAT(young_waits(config, ranks), AllOf(SizeIs(9), Each(0)));
  }
}

struct PipelineWay {
  std::string schedule;
  int ranks = 2;
  void (*apply)(io::Config& config) = [](io::Config&) {};
};

/// Pipelines of two stages.
const std::vector<PipelineWay>& pipelines() {
  static const std::vector<PipelineWay> all{
      {.schedule = "1f1b"},
      {.schedule = "gpipe",
       .apply = [](io::Config& config) { config.model.tie_embeddings = true; }},
      {.schedule = "zb-h1", .ranks = 4, .apply = testing::prune_sparse},
      {.schedule = "interleaved",
       .ranks = 4,
       .apply =
           [](io::Config& config) {
             config.model.tie_embeddings = true;
             config.train.micro_batch = 1;
             config.parallel.zero = 1;
             config.parallel.codec.fallback = "maxmin:8";
             config.parallel.codec_min_size = 64;
           }},
      {.schedule = "message-driven",
       .apply = [](io::Config& config) { config.parallel.activation_codec = "maxmin:8"; }},
  };
  return all;
}

io::Config pipeline_config(const TempDir& dir, const std::string& dtype, const PipelineWay& way) {
  io::Config config = testing::tiny_config(dir);
  config.train.dtype = dtype;
  config.train.micro_batch = 3;
  config.parallel.pipeline = 2;
  config.parallel.schedule = way.schedule;
  config.parallel.partition =
      way.schedule == "interleaved" ? std::vector<int64_t>{1, 1, 1, 1} : std::vector<int64_t>{2, 2};
  config.parallel.check_every = 0;
  way.apply(config);
  config.pruning.at_step = 0;
  return config;
}

TEST_P(Steps, OfPipelinesWaitForNothingOfTheirOwn) {
  const Linked linked;
  for (const PipelineWay& way : pipelines()) {
    SCOPED_TRACE(way.schedule);
    const TempDir dir;
    for (const int rank : {0, way.ranks - 1}) {
      EXPECT_THAT(young_waits(pipeline_config(dir, GetParam(), way), way.ranks, rank),
                  AllOf(SizeIs(9), Each(0)));
    }
  }
}

/// Settings whose norm the host must sum: the test detects these waits.
TEST_P(Steps, WaitForTheNormWhereStagesHaveNoNccl) {
  const Linked linked;
  const TempDir dir;
  io::Config config = pipeline_config(dir, GetParam(), {.schedule = "1f1b"});
  config.parallel.device_link = "host";
  EXPECT_THAT(young_waits(config, 2), AllOf(SizeIs(9), Each(::testing::Gt(0))));
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
void asked(Stream& stream, std::function<void()> task) {
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
  asked(stream, [of_rank, half = args.logits.column_range(0, args.logits.cols() / 2)] {
    ++of_rank->begun;
    if (of_rank->wrong_now(Wrong::loss)) {
      fill(half, -HUGE_VALF);
    }
  });
  kTable().cross_entropy(stream, args);
  asked(stream, [of_rank, row = args.dlogits.row_range(0, 1)] {
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
  std::vector<nlohmann::json> told;
  std::vector<std::string> checkpoints;
  int64_t calls = 0;  ///< of the last rank
  bool operator==(const End&) const = default;
};

/// The plan is that of the last rank.
End end_of(const io::Config& config, int ranks, bool late, const Plan& wrong,
           int64_t stop_after = 0) {
  End end;
  run_ranks(ranks, [&](parallel::Communicator& comm) {
    plan = comm.rank() + 1 == ranks ? wrong : Plan();
    train::TrainerOptions options;
    options.resume = "none";
    options.stop_after = stop_after;
    options.kernels = &table_of(late);
    train::Trainer trainer(config, comm, options);
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
  end.told = testing::told(config);
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
    EXPECT_THAT(here.message,
                HasSubstr(what == Wrong::loss ? "the loss is infinite at step 5: stopped before"
                                              : "the gradient norm is nan at step 5, in "));
    EXPECT_THAT(here.message, HasSubstr("step-000003.h5"));
    EXPECT_EQ(here.state, before.state);
    EXPECT_EQ(here.common, before.common);
    EXPECT_THAT(here.told, SizeIs(kStep - 1));
    EXPECT_THAT(here.checkpoints, ::testing::ElementsAre("step-000003.h5"));
    EXPECT_EQ(here.calls, kStep * a_step);
    EXPECT_EQ(there.calls, (kStep + (what == Wrong::loss ? 1 : 2)) * a_step);
    here.calls = there.calls = 0;
    EXPECT_EQ(there.message, here.message);
    EXPECT_EQ(there, here);
  }
}

void save_at_three(io::Config& config) {
  config.train.checkpoint_every = 3;
  config.parallel.check_every = 0;
}

TEST_P(Steps, ThatGoWrongChangeNothing) {
  for (const testing::Way& way :
       std::vector<testing::Way>{{"dense", [](io::Config&) {}},
                                 {"sparse, micro-batches, 8 bits",
                                  [](io::Config& config) {
                                    testing::prune_sparse(config);
                                    config.pruning.at_step = 2;
                                    config.train.micro_batch = 3;
                                    config.optimizer.state_bits = 8;
                                  }},
                                 {"expanded, bitmap, sgd", [](io::Config& config) {
                                    testing::prune_expanded(config);
                                    config.pruning.at_step = 2;
                                    config.sparse.index.fallback = "bitmap";
                                    config.optimizer.kind = "sgd";
                                    config.optimizer.clip = 0;
                                  }}}) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    save_at_three(config);
    way.apply(config);
    ends_as_on_the_cpu(config, 1);
  }
}

TEST_P(Steps, ThatGoWrongOnOneRankChangeNothingOnAny) {
  const Linked linked;
  for (const auto& [zero, values] : {std::pair{0, "fp32"}, {1, "fp32"}, {1, "maxmin:2"}}) {
    for (const char* link : {"nccl", "host"}) {
      SCOPED_TRACE(fmt::format("zero {}, values in {}, by {}", zero, values, link));
      const TempDir dir;
      io::Config config = testing::tiny_config(dir);
      config.train.dtype = GetParam();
      save_at_three(config);
      config.parallel.zero = zero;
      config.parallel.value_codec.fallback = values;
      ends_as_on_the_cpu(config, 2, link);
    }
  }
}

TEST_P(Steps, ThatGoWrongInAPipelineChangeNothingOnAny) {
  const Linked linked;
  for (const bool tied : {false, true}) {
    for (const char* link : {"nccl", "host"}) {
      SCOPED_TRACE(fmt::format("tied {} by {}", tied, link));
      const TempDir dir;
      io::Config config = pipeline_config(dir, GetParam(), {.schedule = "1f1b", .ranks = 4});
      save_at_three(config);
      config.model.tie_embeddings = tied;
      config.parallel.zero = tied ? 1 : 0;
      ends_as_on_the_cpu(config, 4, link);
    }
  }
}

/// A requested end comes one step later at most, with that step's checkpoint.
TEST_P(Steps, EndWhenTheyAreAskedTo) {
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  config.train.dtype = GetParam();
  std::atomic<bool> stop = false;
  train::TrainerOptions options;
  options.kernels = &testing::late_table();
  options.stop_requested = [&] { return stop.load(); };
  options.on_step = [&](const train::StepReport& report) { stop = report.step >= 4; };
  options.resume = "none";
  int64_t steps = 0;
  Outcome late;
  run_ranks(1, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, options);
    const train::RunResult result = trainer.run();
    EXPECT_FALSE(result.finished);
    steps = result.steps;
    late = testing::outcome_of(trainer);
  });
  EXPECT_GE(steps, 5);
  EXPECT_LE(steps, 6);
  EXPECT_THAT(testing::told(config), SizeIs(steps));
  EXPECT_TRUE(
      std::filesystem::exists(dir / "run" / "checkpoints" / fmt::format("step-{:06d}.h5", steps)));
  train::TrainerOptions to_there;
  to_there.stop_after = steps;
  Outcome here = testing::run(config, 1, to_there);
  here.losses.clear();
  here.val_loss = 0;
  EXPECT_EQ(late, here);
}

INSTANTIATE_TEST_SUITE_P(DTypes, Steps, ::testing::Values("fp32", "bf16"));

}  // namespace
}  // namespace espalier
