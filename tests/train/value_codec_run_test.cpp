// Runs whose values are sent in codes: resumed, pruned, over pipelines, on other ranks, within
// their memory.
#include <gtest/gtest.h>

#include "io/checkpoint/checkpoint.h"
#include "tests/support/grid.h"
#include "tests/support/ways.h"

namespace espalier::value_codec_run_test {
namespace {

using namespace testing;

const std::vector<Way> kWays{
    {"dense", [](io::Config&) {}},
    {"pruned", prune},
    {"sparse_storage", prune_sparse},
    {"expanded_storage", prune_expanded},
    {"block_storage",
     [](io::Config& config) {
       prune(config);
       config.pruning.method = "block";
       config.pruning.block = 8;
       config.sparse.storage.fallback = "block";
     }},
    {"gradual", prune_gradually},
    {"rigl", move_masks},
    {"sgd", [](io::Config& config) { config.optimizer.kind = "sgd"; }},
    {"eight_bits", testing::set_eight_bits},
    {"fp32_gradients", [](io::Config& config) { config.train.gradient_dtype = "fp32"; }},
    {"coded_gradients",
     [](io::Config& config) {
       config.parallel.codec.fallback = "maxmin:4";
       config.parallel.codec_min_size = 64;
       config.parallel.error_feedback = true;
     }},
    {"by_pattern",
     [](io::Config& config) {
       config.parallel.value_codec = {.fallback = "fp32", .patterns = {{"*.mlp.*", "maxmin:3:64"}}};
     }},
    {"one_owner",  // small buckets: some ranks own whole parameters
     [](io::Config& config) {
       prune(config);
       config.parallel.bucket_mb = 1e-4;
     }},
    {"without_overlap",
     [](io::Config& config) {
       config.parallel.overlap = false;
       config.train.micro_batch = 1;
     }},
};

class ValueCodecRuns : public ::testing::TestWithParam<std::tuple<size_t, std::string>> {
 protected:
  io::Config config() const {
    io::Config made = tiny_config(dir_);
    made.train.dtype = std::get<1>(GetParam());
    made.train.checkpoint_every = 5;
    made.train.keep_checkpoints = 9;
    made.parallel.zero = 1;
    made.parallel.value_codec.fallback = "linear8";
    made.parallel.check_every = 1;
    made.optimizer.clip = 0.05;
    kWays[std::get<0>(GetParam())].apply(made);
    return made;
  }
  TempDir dir_;
};

TEST_P(ValueCodecRuns, LearnsAndResumesWithoutABreak) {
  io::Config exact = config();
  exact.parallel.value_codec = {.fallback = "fp32", .patterns = {}};
  const Outcome plain = run(exact, 3);
  const Outcome whole = run(config(), 3);
  EXPECT_NE(whole.values, plain.values);
  EXPECT_NEAR(whole.losses.back(), plain.losses.back(), 0.01 * plain.losses.back());
  // Before, at and after the pruning.
  EXPECT_EQ(testing::run_with_breaks(config(), 3, {2, 4, 7}), whole);
}

INSTANTIATE_TEST_SUITE_P(All, ValueCodecRuns,
                         ::testing::Combine(::testing::Range(size_t{0}, kWays.size()),
                                            ::testing::Values("fp32", "bf16")),
                         [](const auto& tested) {
                           return kWays[std::get<0>(tested.param)].name + "_" +
                                  std::get<1>(tested.param);
                         });

/// State is planned to the byte where masks are known; elsewhere the plan is at least the use.
TEST(CodedValueMemory, IsAsPlanned) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const std::string codec : {"linear8", "maxmin:2", "fp16"}) {
      for (const std::string method : {"none", "random", "magnitude"}) {
        const TempDir dir;
        io::Config config = tiny_config(dir);
        config.model.width = 64;
        config.train.steps = 5;
        config.train.dtype = dtype;
        config.optimizer.state_bits = 8;
        config.parallel.zero = 1;
        config.parallel.value_codec.fallback = codec;
        config.pruning.method = method;
        config.pruning.sparsity = 0.5;
        config.pruning.scope = "layer";
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
TEST(CodedValueMemory, IsOneMasterCopyAmongAllRanks) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.model.width = 64;
    config.train.dtype = dtype;
    config.parallel.zero = 1;
    config.parallel.value_codec.fallback = "linear8";
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

/// Checkpoints hold the exact master copies and the replicated values, independent of ownership.
TEST(CodedValueCheckpoints, ResumeOnAnyNumberOfRanks) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.train.dtype = dtype;
    config.parallel.zero = 1;
    config.parallel.value_codec.fallback = "maxmin:3";
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

TEST(CodedValuePipelines, ReplicasOfStagesAgreeAndResume) {
  for (const bool tied : {false, true}) {
    const TempDir dir;
    io::Config config = tiny_config(dir);
    config.model.tie_embeddings = tied;
    config.train.micro_batch = 2;
    config.train.checkpoint_every = 5;
    config.parallel.pipeline = 2;
    config.parallel.zero = 1;
    config.parallel.check_every = 1;
    const Outcome plain = run_grid(config, 4);
    config.parallel.value_codec.fallback = "linear8";
    const Outcome whole = expect_resume_is_no_break(config, 4, {5});
    EXPECT_NE(whole.values, plain.values);
    EXPECT_NEAR(whole.losses.back(), plain.losses.back(), 0.01 * plain.losses.back());
  }
}

}  // namespace
}  // namespace espalier::value_codec_run_test
