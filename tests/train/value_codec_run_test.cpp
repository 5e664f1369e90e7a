// Runs whose values are sent in codes: resumed, pruned, over pipelines, on other ranks, within
// their memory.
#include "io/checkpoint/checkpoint.h"
#include "tests/support/grid.h"
#include "tests/support/settings.h"

namespace espalier::value_codec_run_test {
namespace {

using namespace testing;

class ValueCodecRuns : public RunTestWithParam<std::tuple<std::string, std::string>> {
 protected:
  ValueCodecRuns() {
    const auto& [settings, dtype] = GetParam();
    apply_settings(config,
                   "train.checkpoint_every=5 train.keep_checkpoints=9 parallel.zero=1 "
                   "parallel.value_codec=linear8 parallel.check_every=1 optimizer.clip=0.05 " +
                       settings + " train.dtype=" + dtype);
  }
};

TEST_P(ValueCodecRuns, LearnsAndResumesWithoutABreak) {
  io::Config exact = config;
  exact.parallel.value_codec = {.fallback = "fp32", .patterns = {}};
  const Outcome plain = run(exact, 3);
  const Outcome whole = run(config, 3);
  EXPECT_NE(whole.values, plain.values);
  EXPECT_NEAR(whole.losses.back(), plain.losses.back(), 0.01 * plain.losses.back());
  // Before, at and after the pruning.
  EXPECT_EQ(run_with_breaks(config, 3, {2, 4, 7}), whole);
}

// The smallest buckets: some ranks own whole parameters.
INSTANTIATE_TEST_SUITE_P(
    All, ValueCodecRuns,
    ::testing::Combine(
        ::testing::Values("", "prune", "prune_sparse", "prune_expanded", "blocks pruning.block=8",
                          "prune_gradually", "move_masks", "optimizer.kind=sgd", "eight_bits",
                          "train.gradient_dtype=fp32",
                          "codec:maxmin:4 parallel.error_feedback=true",
                          "parallel.value_codec={default=\"fp32\",\"*.mlp.*\"=\"maxmin:3:64\"}",
                          "prune parallel.bucket_mb=1e-4",
                          "parallel.overlap=false train.micro_batch=1"),
        ::testing::Values("fp32", "bf16")));

using CodedValueMemory = RunTest;

/// State is planned to the byte where masks are known; elsewhere the plan is at least the use.
TEST_F(CodedValueMemory, IsAsPlanned) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const std::string codec : {"linear8", "maxmin:2", "fp16"}) {
      for (const std::string method : {"none", "random", "magnitude"}) {
        config = tiny_config(dir);
        apply_settings(config,
                       fmt::format("model.width=64 train.steps=5 train.dtype={} "
                                   "optimizer.state_bits=8 parallel.zero=1 parallel.value_codec={} "
                                   "pruning.method={} pruning.sparsity=0.5 pruning.scope=layer",
                                   dtype, codec, method));
        config.pruning.at_step = method == "magnitude" ? 3 : -1;
        for (const int ranks : {2, 4}) {
          parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
            train::Trainer trainer(config, comm, {.resume = "none"});
            trainer.run();
            const train::MemoryPlan& plan = trainer.fit().plan;
            const Arena& arena = trainer.arena();
            for (const Memory kind : {Memory::weight, Memory::master, Memory::moment}) {
              EXPECT_EQ(plan.last.at(static_cast<size_t>(kind)), arena.use(kind).now)
                  << name_of(kind) << " " << dtype << " " << method;
            }
            const auto planned = plan.peak.at(static_cast<size_t>(Memory::communication));
            const size_t held = arena.use(Memory::communication).peak;
            EXPECT_GE(planned, held) << dtype << " " << codec << " " << ranks;
            EXPECT_GE(train::sum_of(plan.peak), arena.total().peak);
            EXPECT_LT(train::sum_of(plan.peak), 3.5 * static_cast<double>(arena.total().peak));
            const sparse::StateParts parts = trainer.stage().store().parts();
            EXPECT_EQ(parts.low + parts.master, arena.use(Memory::master).now);
          });
        }
      }
    }
  }
}

/// All ranks together hold one copy of 4 bytes, for any type; for bf16 it replaces the low halves.
TEST_F(CodedValueMemory, IsOneMasterCopyAmongAllRanks) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    config = tiny_config(dir);
    config.model.width = 64;
    config.train.dtype = dtype;
    apply_settings(config, "parallel.zero=1 parallel.value_codec=linear8");
    run(config, 3);
    const auto summary = testing::read_json(dir / "run/summary.json");
    double held = 0;
    for (const auto& rank : summary["memory"]["ranks"]) {
      held += rank["master"]["bytes"].get<double>();
    }
    const double all = 4 * summary["parameters"].get<double>();
    EXPECT_NEAR(held, all, 0.05 * all) << dtype;
  }
}

/// A coded run resumes with the replicated values; other runs with exact values, rounded to their
/// type.
void expect_common(sparse::Store& store, const std::filesystem::path& file, bool coded) {
  const io::CheckpointReader reader(file);
  bool differ = false;
  for (const sparse::Parameter& parameter : store.parameters()) {
    if (parameter.spec.shape.rank() > 1) {
      std::vector<float> saved(static_cast<size_t>(parameter.kept()));
      reader.values(parameter.spec.name,
                    Tensor(saved.data(), DType::fp32, Shape{parameter.kept()}));
      differ |= store.values(parameter) != saved;
    }
  }
  EXPECT_NE(differ, coded);
}

using CodedValueCheckpoints = RunTest;

/// Checkpoints hold the exact master copies and the replicated values, independent of ownership.
TEST_F(CodedValueCheckpoints, ResumeOnAnyNumberOfRanks) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    config = tiny_config(dir);
    config.train.dtype = dtype;
    apply_settings(config, "parallel.zero=1 parallel.value_codec=maxmin:3");
    const Outcome first = run(config, 3, {.stop_after = 6});
    io::Config exact = config;
    exact.parallel.value_codec.fallback = "fp32";
    io::Config whole = exact;
    whole.parallel.zero = 0;
    for (const auto& [as, ranks] : {std::pair{config, 2}, {exact, 3}, {whole, 2}, {whole, 1}}) {
      // No training in between: the loaded state equals the saved one.
      parallel::run_ranks(ranks, [&](parallel::Communicator& comm) {
        train::Trainer trainer(as, comm, {.resume = "auto"});
        const Outcome loaded = testing::outcome_of(trainer);
        EXPECT_EQ(loaded.values, first.values);
        EXPECT_EQ(loaded.moments, first.moments);
        expect_common(trainer.stage().store(), dir / "run/checkpoints/step-000006.h5",
                      as.parallel.value_codec.fallback != "fp32");
      });
    }
    const Outcome onwards = run(exact, 2, {.resume = "auto"});
    EXPECT_EQ(onwards.losses.size(), 6U);
    // From there a run with exact values, then one with codes again.
    io::Config again = config;
    again.train.steps = 16;
    EXPECT_LT(run(again, 2, {.resume = "auto"}).losses.back(), first.losses.back());
  }
}

using CodedValuePipelines = RunTest;

TEST_F(CodedValuePipelines, ReplicasOfStagesAgreeAndResume) {
  for (const bool tied : {false, true}) {
    config = tiny_config(dir);
    config.model.tie_embeddings = tied;
    apply_settings(config,
                   "train.micro_batch=2 train.checkpoint_every=5 parallel.pipeline=2 "
                   "parallel.schedule=1f1b parallel.zero=1 parallel.check_every=1");
    const Outcome plain = run_grid(config, 4);
    config.parallel.value_codec.fallback = "linear8";
    const Outcome whole = expect_resume_is_no_break(config, 4, {5});
    EXPECT_NE(whole.values, plain.values);
    EXPECT_NEAR(whole.losses.back(), plain.losses.back(), 0.01 * plain.losses.back());
  }
}

}  // namespace
}  // namespace espalier::value_codec_run_test
