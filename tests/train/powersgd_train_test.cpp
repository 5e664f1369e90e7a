// Codec powersgd as whole runs: replicas stay equal, resuming changes no bit, training converges,
// pruned parameters leave, values that are not finite stop the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "io/checkpoint/checkpoint.h"
#include "parallel/transport/collectives.h"
#include "src/train/exchange/low_rank_codec.h"
#include "tests/support/failure.h"
#include "tests/support/grid.h"

namespace espalier::powersgd_train_test {
namespace {

using namespace testing;
using ::testing::HasSubstr;

constexpr const char* kExpand = "blocks.0.mlp.expand.weight";

io::Config low_rank(const TempDir& dir, int64_t warmup = 2) {
  io::Config config = tiny_config(dir);
  config.parallel.codec.fallback = "powersgd:2";
  config.parallel.codec_min_size = 64;
  config.parallel.powersgd_warmup = warmup;
  return config;
}

struct Way {
  std::string reduction = "sra";
  std::string dtype = "fp32";
  int zero = 0;
  std::string other = "fp32";  ///< codec of the blocks' MLPs
};
const std::vector<Way> kWays{{},
                             {.dtype = "bf16", .zero = 1},
                             {.reduction = "ring", .other = "maxmin:4"},
                             {.reduction = "all-to-all", .dtype = "bf16", .other = "sign"},
                             {.reduction = "hierarchical", .zero = 1, .other = "topk:0.1"}};

io::Config config_of(const Way& way, const TempDir& dir) {
  io::Config config = low_rank(dir);
  config.parallel.reduction = way.reduction;
  config.train.dtype = way.dtype;
  config.parallel.zero = way.zero;
  config.parallel.codec.patterns = {{"*.mlp.*", way.other}};
  return config;
}

/// check_every = 3 and the end of the run compare the replicas' parameters bit for bit.
TEST(LowRankRuns, KeepReplicasEqualAndBeginAfterTheWarmUp) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.reduction + " " + way.dtype + " " + way.other);
    const TempDir dir;
    io::Config config = config_of(way, dir);
    const Outcome got = run(config, 3);
    config.parallel.codec = {.fallback = "fp32", .patterns = config.parallel.codec.patterns};
    const Outcome plain = run(config, 3);
    EXPECT_TRUE(std::isfinite(got.losses.back()));
    EXPECT_NE(got.values, plain.values);
    for (size_t step = 0; step < 3; ++step) {  // the loss of a step precedes its sums
      EXPECT_EQ(got.losses[step], plain.losses[step]);
    }
    EXPECT_NE(got.losses[3], plain.losses[3]);
  }
}

/// In a model this small two columns are a sixteenth of the narrower side.
TEST(LowRankRuns, MoreColumnsLearnBetter) {
  const TempDir dir;
  io::Config config = low_rank(dir);
  config.train.steps = 60;
  std::vector<double> losses;
  double first = 0;
  for (const std::string codec : {"powersgd:1", "powersgd:2", "powersgd", "powersgd:7", "fp32"}) {
    config.parallel.codec.fallback = codec;
    const Outcome got = run(config, 2);
    losses.push_back(got.val_loss);
    first = got.losses.front();
  }
  EXPECT_TRUE(std::ranges::is_sorted(losses, std::greater<>()));
  EXPECT_NEAR(losses[3], losses[4], 0.03 * losses[4]);
  EXPECT_GT(first - losses[0], 0.6 * (first - losses[4]));
}

TEST(LowRankRuns, SendTheBytesOfTheirFactors) {
  const TempDir dir;
  io::Config config = low_rank(dir);
  config.parallel.codec = {.fallback = "fp32", .patterns = {{kExpand, "powersgd:2"}}};
  int64_t warm = 0;
  int64_t coded = 0;
  parallel::run_ranks(2, [&](parallel::Communicator& comm) {
    train::TrainerOptions options{.resume = "none"};
    options.on_step = [&](const train::StepReport& report) {
      if (comm.rank() == 0) {
        (report.step <= 2 ? warm : coded) = report.allreduce_bytes;
      }
    };
    train::Trainer trainer(config, comm, options);
    trainer.run();
  });
  EXPECT_EQ(warm - coded, 4 * (128 * 32 - 2 * (128 + 32)));
}

/// With the same replicas a resumed run has the bits of an uninterrupted one.
TEST(LowRankRuns, ResumeIsNoBreak) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(fmt::format("{} {}", way.reduction, way.dtype));
    const TempDir dir;
    io::Config config = config_of(way, dir);
    config.parallel.powersgd_warmup = 5;
    expect_resume_is_no_break(config, 2, {3, 8});  // before the end of the warm-up, and after it
  }
}

TEST(LowRankRuns, ResumeOverAPipelineIsNoBreak) {
  for (const bool tied : {false, true}) {
    const TempDir dir;
    io::Config config = low_rank(dir);
    config.model.tie_embeddings = tied;
    config.parallel.pipeline = 2;
    config.train.micro_batch = 2;
    config.train.checkpoint_every = 5;
    expect_resume_is_no_break(config, 4, {5});
  }
}

TEST(LowRankRuns, ResumeOfAnAsynchronousPipelineIsNoBreak) {
  const TempDir dir;
  io::Config config = low_rank(dir);
  config.parallel.schedule = "async";
  config.parallel.pipeline = 2;
  config.model.tie_embeddings = false;
  config.parallel.drain_every = 5;
  config.train.micro_batch = 2;
  config.train.checkpoint_every = 5;
  expect_resume_is_no_break(config, 4, {5});
}

std::vector<float> factor_of(train::Trainer& trainer, parallel::LowRank& kept) {
  const sparse::Parameter& parameter = trainer.stage().store().find(kExpand);
  const auto columns = kept.factor(*kept.find(parameter.offset)).span<float>();
  return {columns.begin(), columns.end()};
}

/// Another number of ranks resumes with the same Q and all kept errors; so does another number of
/// columns.
TEST(LowRankRuns, OtherRanksResumeWithTheSameFactors) {
  const TempDir dir;
  io::Config config = low_rank(dir);
  config.train.checkpoint_every = 0;
  parallel::run_ranks(3, [&](parallel::Communicator& comm) {
    train::Trainer trainer(config, comm, {.resume = "none", .stop_after = 6});
    trainer.run();
  });
  const auto path = io::newest_intact_checkpoint(dir / "run" / "checkpoints").file;
  ASSERT_TRUE(path.has_value());
  const io::CheckpointReader reader(*path);
  const Shape shape = reader.optimizer_shape(kExpand, "lowrank");
  EXPECT_EQ(shape, (Shape{2, 32}));
  std::vector<float> saved(64);
  reader.optimizer(kExpand, "lowrank", Tensor(saved.data(), DType::fp32, shape));
  EXPECT_FALSE(reader.has_optimizer("blocks.0.mlp.expand.bias", "lowrank"));
  double lacking = 0;
  std::vector<float> error(128 * 32);
  for (const char* kind : {"feedback.0", "feedback.1", "feedback.2"}) {
    reader.optimizer(kExpand, kind, Tensor(error.data(), DType::fp32, Shape{128 * 32}));
    lacking += double{error[1000]};
  }
  EXPECT_NE(lacking, 0);
  for (const std::string codec : {"powersgd:2", "powersgd:1", "powersgd:5"}) {
    config.parallel.codec.fallback = codec;
    parallel::run_ranks(2, [&](parallel::Communicator& comm) {
      train::Trainer trainer(config, comm, {.resume = path->string()});
      std::vector<float> got = factor_of(trainer, trainer.data_parallel().low_rank());
      EXPECT_EQ(got.size(), 32 * (codec.back() - '0'));
      const size_t both = std::min(got.size(), saved.size());
      EXPECT_TRUE(std::equal(got.begin(), got.begin() + static_cast<int64_t>(both), saved.begin()));
      const sparse::Store& store = trainer.stage().store();
      const auto& parameter = trainer.stage().store().find(kExpand);
      std::vector<double> sum{double{store.part(store.feedback(), parameter).get<float>()[1000]}};
      parallel::all_reduce_small(comm, sum, parallel::Combine::sum);
      EXPECT_NEAR(sum[0], lacking, 1e-6 * std::abs(lacking));
      trainer.run();
    });
  }
}

/// A newly pruned parameter is sent uncompressed from then on, and keeps its error feedback.
TEST(LowRankRuns, PrunedParametersLoseTheirFactors) {
  for (const int zero : {0, 1}) {
    const TempDir dir;
    io::Config config = low_rank(dir);
    config.parallel.zero = zero;
    config.pruning.method = "magnitude";
    config.pruning.sparsity = 0.7;
    config.pruning.at_step = 6;
    config.pruning.exclude = {"*.attention.*"};
    config.train.checkpoint_every = 5;
    const Outcome whole = run(config, 2);
    config.run.out = (dir / "parts").string();
    run(config, 2, {.stop_after = 9});
    const auto path = io::newest_intact_checkpoint(dir / "parts" / "checkpoints").file;
    ASSERT_TRUE(path.has_value());
    const io::CheckpointReader reader(*path);
    EXPECT_FALSE(reader.has_optimizer(kExpand, "lowrank"));
    int kept = 0;
    for (const std::string& name : reader.names()) {
      kept += reader.has_optimizer(name, "lowrank") ? 1 : 0;
    }
    EXPECT_GT(kept, 0);
    const int64_t nnz = reader.info(kExpand).nnz;
    std::vector<float> error(static_cast<size_t>(nnz));
    reader.optimizer(kExpand, "feedback.0", Tensor(error.data(), DType::fp32, Shape{nnz}));
    EXPECT_THAT(error, ::testing::Each(0.0F));
    EXPECT_EQ(run(config, 2, {.resume = "auto"}).values, whole.values);
  }
}

TEST(LowRankRuns, APatternForPrunedParametersIsRefused) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.parallel.codec.patterns = {{"*.mlp.*", "powersgd:2"}};
  config.pruning.method = "magnitude";
  config.pruning.sparsity = 0.7;
  config.pruning.at_step = 3;
  const std::string message = failure_of([&] { run(config, 2); });
  EXPECT_THAT(message, HasSubstr("\"powersgd:2\" supports only unpruned matrices"));
  EXPECT_THAT(message, HasSubstr("blocks.0.mlp."));
  EXPECT_THAT(message, HasSubstr("pruning.exclude"));
  config.pruning.exclude = {"*.mlp.*"};
  EXPECT_TRUE(std::isfinite(run(config, 2).losses.back()));
}

TEST(LowRankRuns, VectorsAndMatricesThatWouldNotShrinkAreNotFactored) {
  const TempDir dir;
  io::Config config = tiny_config(dir);
  config.parallel.codec.fallback = "powersgd";
  config.parallel.codec.patterns = {{"head.*", "powersgd:7"}, {"embedding.*", "sign"}};
  const auto rank = [&](const std::string& name, const Shape& shape) {
    sparse::Parameter parameter;
    parameter.spec.name = name;
    parameter.spec.shape = shape;
    parameter.index = sparse::Index::full(shape.count());
    return train::low_rank_of(config, parameter);
  };
  EXPECT_EQ(rank(kExpand, Shape{128, 32}), 4);
  EXPECT_EQ(rank(kExpand, Shape{31, 32}), 0) << "fewer than codec_min_size";
  EXPECT_EQ(rank("head.weight", Shape{31, 32}), 7);
  EXPECT_EQ(rank("head.weight", Shape{28, 28}), 0) << "no fewer bytes";
  EXPECT_EQ(rank("head.weight", Shape{4096}), 0);
  EXPECT_EQ(rank("embedding.token", Shape{4096, 32}), 0);
}

}  // namespace
}  // namespace espalier::powersgd_train_test
