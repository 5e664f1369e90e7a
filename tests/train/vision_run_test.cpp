// Trainings of networks for images, convolutional (with batch norm and residual blocks) or of
// transformer blocks: the equalities of equality_test.cpp, and the moving averages of batch norm.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <mutex>

#include "src/core/rng.h"
#include "src/model/networks/registry.h"
#include "tests/support/support.h"
#include "tests/support/ways.h"

namespace espalier::vision_run_test {
namespace {

using namespace testing;

constexpr int kImages = 120;
constexpr int kEdge = 6;

void write_idx(const std::string& path, const std::vector<int>& sizes, const std::string& items) {
  std::ofstream out(path, std::ios::binary);
  out << std::string{0, 0, 8, static_cast<char>(sizes.size())};
  for (const int size : sizes) {
    out << std::string{0, 0, static_cast<char>(size / 256), static_cast<char>(size % 256)};
  }
  out << items;
}

/// Images of three classes, which differ in the brightness of their rows.
io::Config config_of(const TempDir& dir, const std::string& dtype = "fp32") {
  std::string pixels;
  std::string labels;
  for (uint32_t i = 0; i < kImages; ++i) {
    labels += static_cast<char>(i % 3);
    for (uint32_t p = 0; p < kEdge * kEdge; ++p) {
      pixels += static_cast<char>(philox(2, i, p)[0] % 100 + 70 * (p / kEdge % 3 == i % 3 ? 1 : 0));
    }
  }
  write_idx(dir / "images", {kImages, kEdge, kEdge}, pixels);
  write_idx(dir / "labels", {kImages}, labels);
  io::Config config = tiny_config(dir);
  testing::take_type(config, dtype);
  config.data = {.kind = "images", .train = {dir / "images", dir / "labels"}};
  config.model.kind = "vision";
  config.model.image = {kEdge, kEdge, 1};
  config.model.network = {"conv 4 3 norm", "basic 6 stride 2", "bottleneck 8", "wide 6", "norm"};
  config.train.global_batch = 12;
  config.train.micro_batch = 3;
  return config;
}

double largest_difference(const Outcome& a, const Outcome& b) {
  double largest = 0;
  for (const auto& [name, values] : a.values) {
    const auto& others = b.values.at(name);
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(values[i] - others[i])));
    }
  }
  return largest;
}

io::Config transformer_config(const TempDir& dir, const std::string& dtype) {
  io::Config config = config_of(dir, dtype);
  config.model.network = {"patch 16 2", "2 x transformer 2", "token-mean"};
  config.model.dropout = 0.1;
  return config;
}

class VisionRuns : public ::testing::TestWithParam<std::string> {
 protected:
  TempDir dir_;
  io::Config config_ = config_of(dir_, GetParam());
};

TEST_P(VisionRuns, LearnsAndEvaluatesWithMovingAverages) {
  config_.train.steps = 60;
  config_.optimizer.lr = 5e-3;
  const Outcome outcome = run(config_);
  EXPECT_LT(outcome.losses.back(), 0.5) << "of about 1.1 = log 3 at the start";
  EXPECT_LT(outcome.val_loss, 0.7);
}

TEST_P(VisionRuns, StagesChangeNoBit) {
  const Outcome whole = run(config_);
  config_.parallel.pipeline = 2;
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    config_.parallel.schedule = schedule;
    EXPECT_EQ(run(config_, 2).losses, whole.losses) << schedule;
  }
}

TEST_P(VisionRuns, ResumeIsNoBreak) {
  prune_sparse(config_);
  const Outcome whole = run(config_);
  EXPECT_EQ(run_with_breaks(config_, 1, {2, 4, 7}), whole);
}

TEST_P(VisionRuns, KeptTilesChangeNoBit) {
  prune_sparse(config_);
  const Outcome made = run(config_);
  config_.sparse.keep_tiles = true;
  EXPECT_EQ(run(config_), made);
}

TEST_P(VisionRuns, FullMaskIsDense) {
  const Outcome dense = run(config_);
  prune(config_);
  config_.pruning.sparsity = 0;
  EXPECT_EQ(run(config_), dense);
}

INSTANTIATE_TEST_SUITE_P(Types, VisionRuns, ::testing::Values("fp32", "bf16", "fp16"));

class TransformerRuns : public ::testing::TestWithParam<std::string> {
 protected:
  TempDir dir_;
  io::Config config_ = transformer_config(dir_, GetParam());
};

TEST_P(TransformerRuns, Learn) {
  config_.model.dropout = 0;
  config_.train.steps = 150;
  config_.optimizer.lr = 5e-3;
  const Outcome outcome = run(config_);
  EXPECT_LT(outcome.losses.back(), 0.5) << "of about 1.1 = log 3 at the start";
  EXPECT_LT(outcome.val_loss, 0.7);
}

TEST_P(TransformerRuns, StagesChangeNoBit) {
  const Outcome whole = run(config_);
  config_.parallel.pipeline = 2;
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
    config_.parallel.schedule = schedule;
    EXPECT_EQ(run(config_, 2).losses, whole.losses) << schedule;
  }
}

TEST_P(TransformerRuns, RecomputeChangesNoBit) {
  const Outcome kept = run(config_);
  for (const std::string recompute : {"selective", "full"}) {
    config_.train.recompute = recompute;
    EXPECT_EQ(run(config_), kept) << recompute;
  }
}

TEST_P(TransformerRuns, ResumeIsNoBreak) {
  prune_sparse(config_);
  const Outcome whole = run(config_);
  EXPECT_EQ(run_with_breaks(config_, 1, {2, 4, 7}), whole);
}

TEST_P(TransformerRuns, FullMaskIsDense) {
  const Outcome dense = run(config_);
  prune(config_);
  config_.pruning.sparsity = 0;
  EXPECT_EQ(run(config_), dense);
}

INSTANTIATE_TEST_SUITE_P(Types, TransformerRuns, ::testing::Values("fp32", "bf16", "fp16"));

/// Storages compute the same products in other orders.
TEST(TransformerStorages, Agree) {
  const TempDir dir;
  io::Config config = transformer_config(dir, "fp32");
  config.optimizer.kind = "sgd";  // an update of Adam magnifies rounding of small gradients
  config.optimizer.lr = 0.05;
  prune(config);
  config.sparse.storage.fallback = "dense";
  const Outcome dense = run(config);
  prune_sparse(config);
  EXPECT_LT(largest_difference(run(config), dense), 1e-5);
  prune_expanded(config);
  EXPECT_LT(largest_difference(run(config), dense), 1e-5);
}

TEST(TransformerRanks, MatchOneRank) {
  const TempDir dir;
  io::Config config = transformer_config(dir, "fp32");
  config.optimizer.kind = "sgd";
  config.optimizer.lr = 0.05;
  const Outcome one = run(config, 1);
  for (const int64_t zero : {0, 1}) {
    config.parallel.zero = zero;
    EXPECT_LT(largest_difference(run(config, 4), one), 1e-5) << " zero " << zero;
  }
}

/// A checkpoint of another norm is refused: its parameters have another meaning.
TEST(TransformerIdentity, HasTheNorm) {
  const TempDir dir;
  io::Config config = transformer_config(dir, "fp32");
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
TEST(VisionStorages, AreChosenByTiming) {
  const TempDir dir;
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const int64_t pipeline : {1, 2}) {
      io::Config config = config_of(dir, dtype);
      config.model.network = {"conv 4 3 norm", "conv 8 3 groups 2", "basic 6 stride 2", "max 3",
                              "linear 16"};
      prune(config);
      config.pruning.at_step = 0;
      config.parallel.pipeline = pipeline;
      config.sparse.storage.fallback = "auto";
      std::string notes;
      const Outcome timed = run(config, 4, {.on_note = [&](const std::string& note) {
                                  static std::mutex mutex;
                                  const std::lock_guard lock(mutex);
                                  notes += note;
                                }});
      EXPECT_NE(notes.find("3x3 of 6x6"), std::string::npos) << notes;
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
TEST(VisionRanks, MatchOneRank) {
  const TempDir dir;
  io::Config config = config_of(dir);
  config.optimizer.kind = "sgd";  // an update of Adam magnifies rounding of small gradients
  config.optimizer.lr = 0.05;
  const Outcome one = run(config, 1);
  for (const int ranks : {2, 4}) {
    for (const int64_t zero : {0, 1}) {
      config.parallel.zero = zero;
      EXPECT_LT(largest_difference(run(config, ranks), one), 2e-4) << ranks << " zero " << zero;
    }
  }
}

/// Replicas that share statistics of a part of a micro-batch each equal one with all of it.
TEST(VisionRanks, SharedStatisticsMatchOneRank) {
  const TempDir dir;
  io::Config config = config_of(dir);
  config.optimizer.kind = "sgd";
  config.optimizer.lr = 0.05;
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
  config.parallel.pipeline = 1;
  config.train.sync_batch_norm = false;
  config.train.micro_batch = 3;
  EXPECT_GT(largest_difference(run(config, 2), one), 1e-3) << "own statistics are others";
}

/// The average of the first step is a tenth of the way from its start (0 and 1) to the statistics
/// of the step: whatever clips the gradient.
TEST(VisionAverages, DoNotDependOnClippingRateOrLossScale) {
  const TempDir dir;
  io::Config config = config_of(dir);
  config.train.steps = 1;
  config.optimizer.warmup_steps = 0;
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
  config.optimizer.lr = 1e-9;
  config.optimizer.kind = "lion";
  EXPECT_EQ(averages(), plain);
  config.train.loss_scale = 256;
  EXPECT_EQ(averages(), plain);
}

TEST(VisionErrors, OnePixelHasNoVariance) {
  const TempDir dir;
  io::Config config = config_of(dir);
  config.model.network = {"conv 4 3", "mean", "conv 4 1 norm"};
  config.train.micro_batch = 1;
  try {
    run(config);
    ADD_FAILURE() << "accepted";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("micro-batch of one pixel"), std::string::npos)
        << failure.what();
  }
}

}  // namespace
}  // namespace espalier::vision_run_test
