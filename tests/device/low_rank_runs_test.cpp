// Codec powersgd from device to device, as whole runs: they have the CPU's bits and bytes, resume
// its checkpoints, and use the planned memory.
#include <gmock/gmock.h>

#include "tests/device/late_runs.h"
#include "tests/support/failure.h"

namespace espalier::low_rank_runs_test {
namespace {

using testing::Outcome;
using testing::RanksWay;
using testing::TempDir;

constexpr const char* kFactors = "codec:powersgd:2 parallel.powersgd_warmup=2 ";

const std::vector<RanksWay>& ways() {
  static const std::vector<RanksWay> all = [] {
    std::vector<RanksWay> made{
        {2, ""},
        {3, "parallel.powersgd_warmup=0 parallel.overlap=false"},
        {3, "parallel.zero=1"},
        {2, R"(parallel.codec={default="powersgd:2","*.mlp.*"="maxmin:4","*.bias"="sign"}
               parallel.error_feedback=true parallel.rounding=stochastic)"},
        {2, R"(parallel.codec={default="powersgd:2","*.mlp.*"="topk:0.1"}
               parallel.zero=1 parallel.bucket_mb=100.0)"},
        {2, R"(prune pruning.at_step=3 pruning.exclude=["*.attention.*"])"},
        {2, R"(prune pruning.sparsity=0.3 pruning.exclude=["*.attention.*"]
               parallel.powersgd_warmup=0 parallel.bucket_mb=100.0)"},
        {2, R"(prune_gradually pruning.to_step=5 parallel.zero=1
               pruning.exclude=["*.attention.*"])"},
        {4, "model.tie_embeddings=true stages:1f1b"},
        {4, "stages:async parallel.drain_every=4"},
        {1, ""},
        {2, "model.tie_embeddings=true stages:gpipe"},
    };
    for (RanksWay& way : made) {
      way.settings = kFactors + way.settings;
    }
    return made;
  }();
  return all;
}

class LateLowRank : public ::testing::Test {
 protected:
  const testing::LinkedDevices linked_;
};

/// State of all ranks, the bytes that each sent in each step, and notes.
struct Counted {
  Outcome outcome;
  std::vector<std::vector<int64_t>> bytes;
  std::string notes;
};

/// `check` is called with each rank's trainer at the end.
Counted run_counted(const io::Config& config, int ranks, const train::TrainerOptions& options,
                    const std::function<void(train::Trainer&)>& check = {}) {
  Counted run;
  run.bytes.resize(static_cast<size_t>(ranks));
  std::mutex mutex;
  testing::on_ranks(ranks, [&](parallel::Communicator& comm) {
    train::TrainerOptions mine = options;
    mine.resume = "none";
    mine.on_step = [&](const train::StepReport& report) {
      run.bytes[comm.rank()].push_back(report.allreduce_bytes);
    };
    mine.on_note = [&](const std::string& note) {
      const std::scoped_lock lock(mutex);
      run.notes += note + "\n";
    };
    train::Trainer trainer(config, comm, mine);
    trainer.run();
    const Outcome state = testing::outcome_of(trainer);
    const std::scoped_lock lock(mutex);
    run.outcome.values.insert(state.values.begin(), state.values.end());
    run.outcome.moments.insert(state.moments.begin(), state.moments.end());
    if (check) {
      check(trainer);
    }
  });
  return run;
}

/// Exactly, unless masks change: then the size of the state of each parameter is an estimate.
void expect_planned(train::Trainer& trainer, const io::Config& config) {
  const bool exactly = config.pruning.method == "none";
  constexpr auto kMessages = static_cast<size_t>(Memory::communication);
  const train::MemoryPlan& plan = trainer.fit().plan;
  const MemoryUse used = trainer.arena().use(Memory::communication);
  EXPECT_LE(trainer.arena().total().peak, train::sum_of(plan.peak));
  EXPECT_TRUE(!exactly || used.peak == plan.peak.at(kMessages));
  const auto last = static_cast<double>(plan.last.at(kMessages));
  EXPECT_NEAR(static_cast<double>(used.now), last, exactly ? 0 : 0.01 * last);
}

/// Six steps: two before factors are sent, and changes of masks at steps 2, 3 and 5.
TEST_F(LateLowRank, HasTheBitsAndTheBytesOfTheCpuInThePlannedMemory) {
  testing::for_ways(ways(), 6, [](const io::Config& config, int ranks) {
    const Counted want = run_counted(config, ranks, {});
    const Counted got =
        run_counted(config, ranks, testing::late_options(), [&](train::Trainer& trainer) {
          if (config.parallel.pipeline == 1) {  // otherwise the plan is that of another stage
            expect_planned(trainer, config);
          }
        });
    EXPECT_TRUE(got.outcome == want.outcome);
    EXPECT_EQ(got.bytes, want.bytes);
    if (ranks > config.parallel.pipeline) {
      EXPECT_THAT(got.notes, ::testing::HasSubstr("from GPU to GPU by NCCL"));
    }
  });
}

/// One run in parts: on the CPU, by NCCL, through the host, by NCCL, on the CPU. Each part resumes
/// the checkpoint of another kind. Factors are sent from before or after the first checkpoint.
TEST_F(LateLowRank, ResumesWhereverItBegan) {
  for (const auto& [warmup, dtype] : {std::pair{2, "fp32"}, {5, "bf16"}}) {
    const TempDir dir;
    io::Config config = testing::tiny_config(dir);
    config.train.dtype = dtype;
    testing::apply_settings(config, kFactors);
    config.parallel.codec.patterns = {{"*.mlp.*", "maxmin:4"}};
    config.parallel.error_feedback = true;
    config.parallel.powersgd_warmup = warmup;
    config.train.steps = 10;
    const Outcome whole = testing::run(config, 2);
    Outcome last;
    int64_t stop = 0;
    for (const std::string link : {"", "nccl", "host", "nccl", ""}) {
      stop += 2;
      SCOPED_TRACE(fmt::format("warmup {}, link {} to step {}", warmup, link, stop));
      config.parallel.device_link = link.empty() ? "auto" : link;
      const train::TrainerOptions part{.resume = stop == 2 ? "none" : "auto",
                                       .stop_after = stop < 10 ? stop : 0};
      last = link.empty() ? testing::run(config, 2, part) : testing::run_late(config, 2, part);
    }
    EXPECT_TRUE(last.values == whole.values);
    EXPECT_TRUE(last.moments == whole.moments);
  }
}

/// The run ends with the parameter's name, as on the CPU.
TEST_F(LateLowRank, NamesTheParameterThatIsNotFinite) {
  const TempDir dir;
  io::Config config = testing::tiny_config(dir);
  testing::apply_settings(config, kFactors);
  config.optimizer.lr = 1e30;
  config.optimizer.warmup_steps = 0;
  const std::string want = failure_of([&] { testing::run(config, 2); });
  EXPECT_THAT(want, ::testing::HasSubstr("step"));
  EXPECT_EQ(failure_of([&] { testing::run_late(config, 2); }), want);
}

}  // namespace
}  // namespace espalier::low_rank_runs_test
