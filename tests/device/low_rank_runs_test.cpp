// Codec powersgd from device to device, as whole runs: they have the CPU's bits and bytes, resume
// its checkpoints, and use the planned memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "io/checkpoint/checkpoint.h"
#include "tests/device/fake_nccl.h"
#include "tests/device/late_table.h"
#include "tests/simt/device.h"
#include "tests/support/grid.h"
#include "tests/support/ways.h"

namespace espalier {
namespace {

using namespace parallel;
using testing::Outcome;
using testing::TempDir;

/// Ranks with NCCL between their devices; devices advance while hosts wait.
struct Linked {
  testing::FakeNccl nccl;
  Linked() {
    nccl.connect(true);
    testing::while_ranks_wait() = simt::drive_queues;
  }
  ~Linked() { testing::while_ranks_wait() = {}; }
};

struct RanksWay {
  int ranks = 2;
  testing::Way way;
};

void factor(io::Config& config) {
  config.parallel.codec.fallback = "powersgd:2";
  config.parallel.codec_min_size = 64;
  config.parallel.powersgd_warmup = 2;
}

void pipe(io::Config& config, const std::string& schedule) {
  factor(config);
  config.model.tie_embeddings = schedule != "async";
  testing::in_two_stages(config, schedule);
}

const std::vector<RanksWay>& ways() {
  static const std::vector<RanksWay> all{
      {2, {"powersgd", factor}},
      {3,
       {"from the first step on, not overlapped",
        [](io::Config& config) {
          factor(config);
          config.parallel.powersgd_warmup = 0;
          config.parallel.overlap = false;
        }}},
      {3,
       {"zero",
        [](io::Config& config) {
          factor(config);
          config.parallel.zero = 1;
        }}},
      {2,
       {"beside codes with kept errors",
        [](io::Config& config) {
          factor(config);
          config.parallel.codec.patterns = {{"*.mlp.*", "maxmin:4"}, {"*.bias", "sign"}};
          config.parallel.error_feedback = true;
          config.parallel.rounding = "stochastic";
        }}},
      {2,
       {"beside codes, zero, one bucket",
        [](io::Config& config) {
          factor(config);
          config.parallel.codec.patterns = {{"*.mlp.*", "topk:0.1"}};
          config.parallel.zero = 1;
          config.parallel.bucket_mb = 100;
        }}},
      {2,
       {"pruned amid the run",
        [](io::Config& config) {
          factor(config);
          testing::prune(config);
          config.pruning.at_step = 6;
          config.pruning.exclude = {"*.attention.*"};
        }}},
      {2,
       {"pruned amid the run, one bucket, from the first step on",
        [](io::Config& config) {
          factor(config);
          testing::prune(config);
          config.pruning.sparsity = 0.3;
          config.pruning.exclude = {"*.attention.*"};
          config.parallel.powersgd_warmup = 0;
          config.parallel.bucket_mb = 100;
        }}},
      {2,
       {"pruned gradually, zero",
        [](io::Config& config) {
          factor(config);
          testing::prune_gradually(config);
          config.parallel.zero = 1;
          config.pruning.exclude = {"*.attention.*"};
        }}},
      {4, {"grid", [](io::Config& config) { pipe(config, "1f1b"); }}},
      {4,
       {"asynchronous grid",
        [](io::Config& config) {
          pipe(config, "async");
          config.parallel.drain_every = 4;
        }}},
      {1, {"alone", factor}},
      {2, {"pipeline of one replica", [](io::Config& config) { pipe(config, "gpipe"); }}},
  };
  return all;
}

train::TrainerOptions late_options() {
  train::TrainerOptions options;
  options.kernels = &testing::late_table();
  return options;
}

class LateLowRank : public ::testing::TestWithParam<std::string> {};

/// Bytes that each rank sent in each step, and the outcome.
struct Counted {
  Outcome outcome;
  std::vector<std::vector<int64_t>> bytes;
  std::string notes;
};

Counted run_counted(const io::Config& config, int ranks, train::TrainerOptions options = {}) {
  Counted run{.outcome = {}, .bytes = {}, .notes = {}};
  run.bytes.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  options.resume = "none";
  run_ranks(ranks,
            [&](Communicator& comm) {
              train::TrainerOptions mine = options;
              mine.on_step = [&](const train::StepReport& report) {
                run.bytes[comm.rank()].push_back(report.allreduce_bytes);
              };
              mine.on_note = [&](const std::string& note) {
                const std::scoped_lock lock(mutex);
                run.notes += note + "\n";
              };
              train::Trainer trainer(config, comm, mine);
              trainer.run();
              const Outcome mine_at_end = testing::outcome_of(trainer);
              const std::scoped_lock lock(mutex);
              run.outcome.values.insert(mine_at_end.values.begin(), mine_at_end.values.end());
              run.outcome.moments.insert(mine_at_end.moments.begin(), mine_at_end.moments.end());
            },
            {.timeout = 60, .while_waiting = testing::while_ranks_wait()});
  return run;
}

TEST_P(LateLowRank, HasTheBitsAndTheBytesOfTheCpu) {
  const Linked linked;
  for (const auto& [ranks, way] : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    const Counted want = run_counted(config, ranks);
    const Counted got = run_counted(config, ranks, late_options());
    EXPECT_TRUE(got.outcome == want.outcome);
    EXPECT_EQ(got.bytes, want.bytes);
    if (ranks > config.parallel.pipeline) {
      EXPECT_THAT(got.notes, ::testing::HasSubstr("from GPU to GPU by NCCL"));
    }
  }
}

/// Starts on one of CPU, NCCL, host link and resumes on another; NCCL is one of the two.
TEST_P(LateLowRank, ResumesWhereverItBegan) {
  const Linked linked;
  for (const int64_t warmup : {2, 8}) {  // before the checkpoint, and behind it
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    factor(config);
    config.parallel.codec.patterns = {{"*.mlp.*", "maxmin:4"}};
    config.parallel.error_feedback = true;
    config.parallel.powersgd_warmup = warmup;
    config.train.checkpoint_every = 5;
    const Outcome whole = testing::run(config, 2);
    const std::vector<std::string> links{"", "nccl", "host"};  // the first: on the CPU
    for (const std::string& begins : links) {
      for (const std::string& goes_on : links) {
        if (begins != "nccl" && goes_on != "nccl") {
          continue;
        }
        SCOPED_TRACE(fmt::format("{}: {} {}", warmup, begins, goes_on));
        config.run.out = (dir / ("from-" + begins + "-to-" + goes_on)).string();
        const auto part = [&](const std::string& link, const std::string& resume, int64_t stop) {
          config.parallel.device_link = link.empty() ? "auto" : link;
          train::TrainerOptions options = link.empty() ? train::TrainerOptions() : late_options();
          options.resume = resume;
          options.stop_after = stop;
          return testing::run(config, 2, options);
        };
        part(begins, "none", 5);
        const Outcome last = part(goes_on, "auto", 0);
        EXPECT_TRUE(last.values == whole.values);
        EXPECT_TRUE(last.moments == whole.moments);
      }
    }
  }
}

TEST_P(LateLowRank, HoldsWhatWasPlanned) {
  const Linked linked;
  for (const auto& [ranks, way] : ways()) {
    SCOPED_TRACE(way.name);
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = GetParam();
    way.apply(config);
    if (config.parallel.pipeline > 1) {
      continue;  // its plan is that of another stage
    }
    run_ranks(ranks,
              [&](Communicator& comm) {
                train::TrainerOptions options = late_options();
                options.resume = "none";
                train::Trainer trainer(config, comm, options);
                trainer.run();
                constexpr auto kMessages = static_cast<size_t>(Memory::communication);
                const train::MemoryPlan& plan = trainer.fit().plan;
                const MemoryUse used = trainer.arena().use(Memory::communication);
                EXPECT_LE(trainer.arena().total().peak, train::sum_of(plan.peak));
                if (config.pruning.method == "none") {
                  EXPECT_EQ(used.peak, plan.peak.at(kMessages));
                }
                // With new masks, the size of the state kept for each parameter is an estimate.
                const auto last = static_cast<double>(plan.last.at(kMessages));
                EXPECT_NEAR(static_cast<double>(used.now), last,
                            config.pruning.method == "none" ? 0 : 0.01 * last);
              },
              {.while_waiting = testing::while_ranks_wait()});
  }
}

/// The run ends with the parameter's name, as on the CPU.
TEST_P(LateLowRank, SaysWhatIsNotFinite) {
  const Linked linked;
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  config.train.dtype = GetParam();
  factor(config);
  config.optimizer.lr = 1e30;
  config.optimizer.warmup_steps = 0;
  const auto message_of = [&](const train::TrainerOptions& options) {
    try {
      testing::run(config, 2, options);
    } catch (const Failure& failure) {
      return std::string(failure.what());
    }
    return std::string();
  };
  const std::string want = message_of({});
  EXPECT_THAT(want, ::testing::HasSubstr("step"));
  EXPECT_EQ(message_of(late_options()), want);
}

INSTANTIATE_TEST_SUITE_P(DTypes, LateLowRank, ::testing::Values("fp32", "bf16"));

}  // namespace
}  // namespace espalier
