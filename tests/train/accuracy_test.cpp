// Top-1 and top-5 accuracy of classifiers of images, label smoothing, and evaluations of all
// validation samples. References: the losses of all classes of each image.
#include <cmath>

#include "src/core/rng.h"
#include "src/train/run/source.h"
#include "tests/support/grid.h"
#include "tests/support/image_files.h"
#include "tests/support/settings.h"

namespace espalier::accuracy_test {
namespace {

using namespace testing;

constexpr int kClasses = 7;
constexpr int64_t kImages = 200;
constexpr int64_t kValidation = 50;  // the last quarter

/// Images of 6 x 6 pixels: noise, a brighter row by class, and labels that are wrong now and then.
void write_images(const TempDir& dir) {
  std::string images, labels;
  for (uint64_t i = 0; i < kImages; ++i) {
    const uint64_t label = mix(1, i) % kClasses;
    labels += static_cast<char>(mix(2, i) % 4 == 0 ? (label + 1) % kClasses : label);
    for (uint64_t pixel = 0; pixel < 36; ++pixel) {
      const uint64_t bright = pixel / 6 == label % 6 && (label < 6 || pixel % 2 == 0) ? 60 : 0;
      images += static_cast<char>(mix(3, 36 * i + pixel) % 60 + bright);
    }
  }
  std::ofstream(dir / "images") << idx_file({kImages, 6, 6}, images);
  std::ofstream(dir / "labels") << idx_file({kImages}, labels);
}

io::Config image_config(const TempDir& dir, const std::string& kind) {
  write_images(dir);
  io::Config config = tiny_config(dir);
  config.model = {.kind = kind,
                  .hidden = {24, 16},
                  .network = {"conv 4 3", "max 2", "linear 16"},
                  .image = {6, 6, 1}};
  config.data = {.kind = "images", .train = {dir / "images", dir / "labels"}};
  apply_settings(config, "data.validation_fraction=0.25 train.eval_batches=0 optimizer.lr=0.02");
  return config;
}

struct Network {
  Network(const io::Config& config, int64_t samples)
      : source(train::open_source(config)),
        stream(arena, 1),
        stage(config, source->problem(), stream, kernels::by_name("auto"),
              {.micro_batch = samples}) {
    stage.store().initialise(3);
    for (sparse::Parameter& parameter : stage.store().parameters()) {
      std::vector<float> values = stage.store().values(parameter);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] += 0.3F * static_cast<float>(std::sin(static_cast<double>(i)));
      }
      stage.store().set_values(parameter, values);
    }
  }

  /// [samples][classes] loss of validation sample `first` + i if its class were c.
  std::vector<std::vector<double>> losses_of_classes(int64_t first, int64_t samples) {
    std::vector<std::vector<double>> losses(static_cast<size_t>(samples));
    for (int64_t i = 0; i < samples; ++i) {
      for (int c = 0; c < kClasses; ++c) {
        const Tensor targets = stage.targets(1);
        source->validation(first + i, stage.inputs(1), targets);
        targets.get<int32_t>()[0] = c;
        losses[static_cast<size_t>(i)].push_back(stage.evaluate(1).sum);
      }
    }
    return losses;
  }
  std::vector<int32_t> classes(int64_t first, int64_t samples) {
    const Tensor targets = stage.targets(samples);
    source->validation(first, stage.inputs(samples), targets);
    const auto all = targets.span<int32_t>();
    std::vector<int32_t> found(all.begin(), all.end());
    stage.evaluate(samples);  // closes the micro-batch
    return found;
  }

  std::unique_ptr<train::Source> source;
  Arena arena;
  Stream stream;
  train::Stage stage;
};

class Kinds : public ::testing::TestWithParam<const char*> {};

/// A class is among the first k if fewer than k classes have less loss.
TEST_P(Kinds, CountsAreThoseOfTheLossesOfAllClasses) {
  const TempDir dir;
  Network network(image_config(dir, GetParam()), kValidation);
  const auto losses = network.losses_of_classes(0, kValidation);
  const std::vector<int32_t> wanted = network.classes(0, kValidation);
  int64_t top1 = 0, top5 = 0;
  double sum = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double own = losses[i][static_cast<size_t>(wanted[i])];
    const auto before = std::ranges::count_if(losses[i], [own](double one) { return one < own; });
    top1 += before < 1 ? 1 : 0;
    top5 += before < 5 ? 1 : 0;
    sum += own;
  }
  EXPECT_GT(top1, 0);
  EXPECT_GT(top5, top1);
  EXPECT_LT(top5, kValidation);
  network.source->validation(0, network.stage.inputs(kValidation),
                             network.stage.targets(kValidation));
  const train::Part::Loss got = network.stage.evaluate(kValidation);
  EXPECT_EQ(got.top1, top1);
  EXPECT_EQ(got.top5, top5);
  EXPECT_NEAR(got.sum, sum, 1e-4);
}

/// (1 - s) loss of the target + s mean of the losses of all classes; evaluations have no smoothing.
TEST_P(Kinds, SmoothingMovesTheTrainingLossToTheMeanOfAllClasses) {
  constexpr double kShare = 0.3;
  const TempDir dir;
  io::Config config = image_config(dir, GetParam());
  config.train.label_smoothing = kShare;
  Network network(config, 8);
  const auto losses = network.losses_of_classes(0, 8);
  const std::vector<int32_t> wanted = network.classes(0, 8);
  double plain = 0, smooth = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double own = losses[i][static_cast<size_t>(wanted[i])];
    plain += own;
    smooth += (1 - kShare) * own;
    for (const double one : losses[i]) {
      smooth += kShare * one / kClasses;
    }
  }
  network.source->validation(0, network.stage.inputs(8), network.stage.targets(8));
  EXPECT_NEAR(network.stage.evaluate(8).sum, plain, 1e-4);
  network.source->validation(0, network.stage.inputs(8), network.stage.targets(8));
  EXPECT_NEAR(network.stage.forward_backward({.samples = 8}), smooth, 1e-4);
  EXPECT_GT(std::abs(smooth - plain), 0.01);
}

INSTANTIATE_TEST_SUITE_P(All, Kinds, ::testing::Values("mlp", "vision"));

/// {val_top1, val_top5} of the last step.
std::pair<double, double> accuracy(const io::Config& config) {
  const auto last = metrics_without_times(config).back();
  return {last.at("val_top1").get<double>(), last.at("val_top5").get<double>()};
}

using Accuracy = RunTest;

/// Learning rate 0: all runs evaluate the same weights. Stages and replicas split the samples
/// unevenly, and micro-batches leave a rest.
TEST_F(Accuracy, IsTheSameForAllGrids) {
  config = image_config(dir, "mlp");
  config.train.steps = 1;
  config.optimizer.lr = config.optimizer.min_lr = 0;
  run(config);
  const auto one = accuracy(config);
  const auto summary = read_json(std::filesystem::path(config.run.out) / "summary.json");
  EXPECT_EQ(summary.at("final_val_top1"), one.first);
  EXPECT_EQ(summary.at("best_val_top5"), one.second);
  EXPECT_TRUE(summary.contains("images_per_s"));
  EXPECT_FALSE(summary.contains("tokens_per_s"));
  EXPECT_EQ(one.first * kValidation, std::round(one.first * kValidation));
  for (const auto& [ranks, pipeline, micro_batch] :
       {std::array{3, 1, 2}, std::array{2, 2, 3}, std::array{6, 3, 3}, std::array{4, 2, 1}}) {
    io::Config with = config;
    with.parallel.pipeline = pipeline;
    with.train.micro_batch = micro_batch;
    run(with, ranks);
    EXPECT_EQ(accuracy(with), one) << ranks << " ranks, " << pipeline << " stages";
  }
}

TEST_F(Accuracy, TrainingRaisesIt) {
  config = image_config(dir, "mlp");
  apply_settings(config, "train.steps=60 train.eval_every=1");
  run(config);
  const auto lines = metrics_without_times(config);
  const auto summary = read_json(std::filesystem::path(config.run.out) / "summary.json");
  double best = 0;
  for (const auto& line : lines) {
    best = std::max(best, line.at("val_top1").get<double>());
  }
  EXPECT_EQ(summary.at("best_val_top1"), best);
  EXPECT_EQ(summary.at("final_val_top1"), lines.back().at("val_top1"));
  EXPECT_GT(best, 0.5);
  EXPECT_GT(lines.back().at("val_top1"), lines.front().at("val_top1"));
}

TEST_F(Accuracy, RunsOfTokensHaveNone) {
  config.train.steps = 1;
  run(config);
  EXPECT_FALSE(metrics_without_times(config).back().contains("val_top1"));
  const auto summary = read_json(std::filesystem::path(config.run.out) / "summary.json");
  EXPECT_FALSE(summary.contains("final_val_top1"));
  EXPECT_FALSE(summary.contains("images_per_s"));
}

using Evaluation = RunTest;

TEST_F(Evaluation, ZeroBatchesAreAllSamples) {
  config = image_config(dir, "mlp");
  config.train.steps = 1;
  config.train.global_batch = 12;  // 4 batches, and 2 samples
  const double all = run(config).val_loss;
  config.train.eval_batches = 5;
  EXPECT_EQ(run(config).val_loss, all);
  config.train.eval_batches = 4;
  EXPECT_NE(run(config).val_loss, all);
}

using Smoothing = RunTest;

TEST_F(Smoothing, ChangesTrainingAndSurvivesABreak) {
  config = image_config(dir, "mlp");
  const Outcome plain = run(config);
  config.train.label_smoothing = 0.2;
  const Outcome smooth = run(config);
  EXPECT_NE(smooth.values, plain.values);
  EXPECT_EQ(run_with_breaks(config, 1, {5}), smooth);
  io::Config staged = config;
  apply_settings(staged, "parallel.pipeline=2 train.micro_batch=4");
  config.train.micro_batch = 4;
  EXPECT_EQ(run(staged, 2).losses, run(config).losses);
}

}  // namespace
}  // namespace espalier::accuracy_test
