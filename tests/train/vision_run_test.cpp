// Trainings of networks for images, convolutional (with batch norm and residual blocks) or of
// transformer blocks: the equalities of equality_test.cpp, and the moving averages of batch norm.
#include <cmath>

#include "src/model/networks/registry.h"
#include "tests/support/failure.h"
#include "tests/support/image_files.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::vision_run_test {
namespace {

using namespace testing;

constexpr int kEdge = 6;

/// `network`: "convolutions" or "transformer".
io::Config config_of(const TempDir& dir, const std::string& network, const std::string& dtype) {
  io::Config config = tiny_config(dir);
  take_type(config, dtype);
  config.data = write_images(dir / "", 120, kEdge);
  config.model.kind = "vision";
  config.model.image = {kEdge, kEdge, 1};
  config.model.network = {"conv 4 3 norm", "basic 6 stride 2", "bottleneck 8", "wide 6", "norm"};
  if (network == "transformer") {
    config.model.network = {"patch 16 2", "2 x transformer 2", "token-mean"};
    config.model.dropout = 0.1;
  }
  apply_settings(config, "train.global_batch=12 train.micro_batch=3");
  return config;
}

/// Of a network and a type.
class VisionRuns : public RunTestWithParam<std::tuple<std::string, std::string>> {
 protected:
  VisionRuns() { config = config_of(dir, std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

TEST_P(VisionRuns, LearnAndEvaluateWithMovingAverages) {
  config.model.dropout = 0;
  config.train.steps = std::get<0>(GetParam()) == "transformer" ? 150 : 60;
  config.optimizer.lr = 5e-3;
  const Outcome outcome = run(config);
  EXPECT_LT(outcome.losses.back(), 0.5) << "of about 1.1 = log 3 at the start";
  EXPECT_LT(outcome.val_loss, 0.7);
}

TEST_P(VisionRuns, StagesChangeNoBit) {
  const Outcome whole = run(config);
  config.parallel.pipeline = 2;
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    config.parallel.schedule = schedule;
    EXPECT_EQ(run(config, 2).losses, whole.losses) << schedule;
  }
}

TEST_P(VisionRuns, ResumeIsNoBreak) {
  prune_sparse(config);
  const Outcome whole = run(config);
  EXPECT_EQ(run_with_breaks(config, 1, {2, 4, 7}), whole);
}

TEST_P(VisionRuns, FullMaskIsDense) {
  const Outcome dense = run(config);
  prune(config);
  config.pruning.sparsity = 0;
  EXPECT_EQ(run(config), dense);
}

const auto kTypes = ::testing::Values("fp32", "bf16", "fp16");
INSTANTIATE_TEST_SUITE_P(All, VisionRuns,
                         ::testing::Combine(::testing::Values("convolutions", "transformer"),
                                            kTypes));

using ConvolutionRuns = VisionRuns;

TEST_P(ConvolutionRuns, KeptTilesChangeNoBit) {
  prune_sparse(config);
  const Outcome made = run(config);
  config.sparse.storage.fallback = "tiles";
  EXPECT_EQ(run(config), made);
}

INSTANTIATE_TEST_SUITE_P(All, ConvolutionRuns,
                         ::testing::Combine(::testing::Values("convolutions"), kTypes));

using TransformerRuns = VisionRuns;

TEST_P(TransformerRuns, RecomputeChangesNoBit) {
  const Outcome kept = run(config);
  for (const std::string recompute : {"selective", "full"}) {
    config.train.recompute = recompute;
    EXPECT_EQ(run(config), kept) << recompute;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TransformerRuns,
                         ::testing::Combine(::testing::Values("transformer"), kTypes));

struct Vision : RunTest {
  Vision() { take("convolutions"); }
  void take(const std::string& network) { config = config_of(dir, network, "fp32"); }
  /// Updates of Adam magnify the rounding of small gradients.
  void take_sgd() { apply_settings(config, "optimizer.kind=sgd optimizer.lr=0.05"); }
};

/// Storages compute the same products in other orders.
TEST_F(Vision, StoragesOfTransformersAgree) {
  take("transformer");
  take_sgd();
  prune(config);
  config.sparse.storage.fallback = "dense";
  const Outcome dense = run(config);
  prune_sparse(config);
  EXPECT_LT(largest_difference(run(config), dense), 1e-5);
  prune_expanded(config);
  EXPECT_LT(largest_difference(run(config), dense), 1e-5);
}

/// A checkpoint of another norm is refused: its parameters have another meaning.
TEST_F(Vision, TheIdentityHasTheNorm) {
  take("transformer");
  const auto norm_of = [](const io::Config& of) {
    std::string found = "none";
    for (const auto& [key, value] : model::network_of(of.model).identity(of.model)) {
      found = key == "norm" ? value : found;
    }
    return found;
  };
  EXPECT_EQ(norm_of(config), "layernorm");
  config.model.network = {"conv 4 3 norm"};
  EXPECT_EQ(norm_of(config), "none");
}

/// Storages that were chosen by timing are those of the manifest, the same on all ranks, and
/// compute as if they were named.
TEST_F(Vision, StoragesAreChosenByTiming) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const int64_t pipeline : {1, 2}) {
      config = config_of(dir, "convolutions", dtype);
      config.model.network = {"conv 4 3 norm", "conv 8 3 groups 2", "basic 6 stride 2", "max 3",
                              "linear 16"};
      prune(config);
      apply_settings(
          config,
          fmt::format("pruning.at_step=0 parallel.pipeline={} sparse.storage=auto", pipeline));
      std::string notes;
      const Outcome timed = run(config, 4, notes);
      EXPECT_THAT(notes, HasSubstr("3x3 of 6x6"));
      const auto storages = read_json(dir / "run/manifest.json")["storages"]
                                .get<std::map<std::string, std::string>>();
      EXPECT_EQ(storages.size(), 7U) << "two groups, a block of three, a perceptron, the first";
      config.sparse.storage.fallback = "sparse";
      config.sparse.storage.patterns.assign(storages.begin(), storages.end());
      EXPECT_EQ(run(config, 4), timed) << dtype << " " << pipeline;
    }
  }
}

/// With the same micro-batches the statistics are the same on any number of ranks, so only the
/// order of sums differs.
TEST_F(Vision, RanksMatchOneRank) {
  for (const auto& [network, most] :
       {std::pair("convolutions", 2e-4), std::pair("transformer", 1e-5)}) {
    take(network);
    take_sgd();
    const Outcome one = run(config, 1);
    for (const int ranks : {2, 4}) {
      for (const int64_t zero : {0, 1}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks, zero {}", network, ranks, zero));
        config.parallel.zero = zero;
        EXPECT_LT(largest_difference(run(config, ranks), one), most);
      }
    }
  }
}

/// Replicas that share statistics of a part of a micro-batch each equal one with all of it.
TEST_F(Vision, SharedStatisticsMatchOneRank) {
  take_sgd();
  config.train.micro_batch = 12;  // all: else a replica's micro-batches have other neighbours
  const Outcome one = run(config, 1);
  config.train.sync_batch_norm = true;
  for (const int ranks : {2, 3}) {
    config.train.micro_batch = 12 / ranks;
    config.parallel.pipeline = 1;
    EXPECT_LT(largest_difference(run(config, ranks), one), 2e-4) << ranks;
    config.parallel.pipeline = 2;
    EXPECT_LT(std::abs(run(config, 2 * ranks).losses.back() - one.losses.back()), 1e-4) << ranks;
  }
  apply_settings(config, "parallel.pipeline=1 train.sync_batch_norm=false train.micro_batch=3");
  EXPECT_GT(largest_difference(run(config, 2), one), 1e-3) << "own statistics are others";
}

/// The average of the first step is a tenth of the way from its start (0 and 1) to the statistics
/// of the step: whatever clips the gradient.
TEST_F(Vision, AveragesDoNotDependOnClippingRateOrLossScale) {
  apply_settings(config, "train.steps=1 optimizer.warmup_steps=0");
  const auto averages = [&] {
    std::map<std::string, std::vector<float>> found;
    for (const auto& [name, values] : run(config).values) {
      if (name.ends_with(".mean") || name.ends_with(".variance")) {
        found[name] = values;
      }
    }
    return found;
  };
  const auto plain = averages();
  EXPECT_EQ(plain.size(), 2 * (1 + 3 + 4 + 2 + 1));
  double moved = 0;
  for (const float value : plain.at("0.conv.norm.variance")) {
    EXPECT_GE(value, 0.9F);  // 0.9 of the first value, and a tenth of a variance
    moved += std::abs(static_cast<double>(value) - 0.9);
  }
  EXPECT_GT(moved, 1e-3);
  config.optimizer.clip = 1e-6;
  EXPECT_EQ(averages(), plain);
  apply_settings(config, "optimizer.lr=1e-9 optimizer.kind=lion");
  EXPECT_EQ(averages(), plain);
  config.train.loss_scale = 256;
  EXPECT_EQ(averages(), plain);
}

TEST_F(Vision, OnePixelHasNoVariance) {
  config.model.network = {"conv 4 3", "mean", "conv 4 1 norm"};
  config.train.micro_batch = 1;
  EXPECT_THAT(failure_of([&] { run(config); }), HasSubstr("micro-batch of one pixel"));
}

}  // namespace
}  // namespace espalier::vision_run_test
