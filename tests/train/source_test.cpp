// Batches of a run: the samples that a step or an evaluation reads, which depend neither on ranks
// nor on the parts in which they are read.
#include "src/train/run/source.h"

#include <numeric>

#include "io/data/images.h"
#include "tests/support/image_files.h"
#include "tests/support/settings.h"
#include "tests/support/support.h"

namespace espalier::source_test {
namespace {

using namespace testing;

constexpr int64_t kContext = 5;
constexpr int64_t kSamples = 3;

struct Batch {
  std::vector<float> inputs;  ///< of images
  std::vector<int32_t> tokens, targets;
  bool operator==(const Batch&) const = default;
};

/// Calls read(first, inputs, targets) for `samples` samples from `first` on.
template <class Read>
Batch batch_of(const train::Source& source, int64_t first, int64_t samples, const Read& read) {
  const train::ProblemShape shape = source.problem();
  const auto inputs = static_cast<size_t>(samples * shape.features);
  Batch batch;
  batch.targets.assign(static_cast<size_t>(samples * shape.rows), -1);
  const Tensor targets(batch.targets.data(), DType::int32, Shape{samples * shape.rows});
  const Shape wide{samples, shape.features};
  if (shape.input_dtype == DType::int32) {
    batch.tokens.assign(inputs, -1);
    read(first, Tensor(batch.tokens.data(), DType::int32, wide), targets);
  } else {
    batch.inputs.assign(inputs, -1);
    read(first, Tensor(batch.inputs.data(), DType::fp32, wide), targets);
  }
  return batch;
}

Batch training(const train::Source& source, int64_t step, int64_t first, int64_t samples) {
  return batch_of(source, first, samples, [&](int64_t at, const Tensor& inputs, const Tensor& out) {
    source.train(step, at, inputs, out);
  });
}

Batch validation(const train::Source& source, int64_t first, int64_t samples) {
  return batch_of(source, first, samples, [&](int64_t at, const Tensor& inputs, const Tensor& out) {
    source.validation(at, inputs, out);
  });
}

template <class Value>
std::vector<Value> joined(std::vector<Value> first, const std::vector<Value>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// A batch read in two parts, or inputs and targets apart, as two stages do, is the same batch.
void expect_same_in_parts(const train::Source& source) {
  const Batch whole = training(source, 7, 1, kSamples);
  const Batch a = training(source, 7, 1, 1);
  const Batch b = training(source, 7, 2, kSamples - 1);
  EXPECT_EQ(joined(a.tokens, b.tokens), whole.tokens);
  EXPECT_EQ(joined(a.inputs, b.inputs), whole.inputs);
  EXPECT_EQ(joined(a.targets, b.targets), whole.targets);
  Batch apart = whole;
  std::ranges::fill(apart.tokens, -1);
  std::ranges::fill(apart.inputs, -1.0F);
  std::ranges::fill(apart.targets, -1);
  batch_of(source, 1, kSamples, [&](int64_t at, const Tensor& inputs, const Tensor& targets) {
    source.train(7, at, inputs, {});
    source.train(7, at, {}, targets);
    std::copy_n(static_cast<const int32_t*>(targets.data), apart.targets.size(),
                apart.targets.data());
    if (inputs.dtype == DType::int32) {
      std::copy_n(inputs.get<int32_t>(), apart.tokens.size(), apart.tokens.data());
    } else {
      std::copy_n(inputs.get<float>(), apart.inputs.size(), apart.inputs.data());
    }
  });
  EXPECT_EQ(apart, whole);
  EXPECT_NE(training(source, 8, 1, kSamples), whole) << "another step";
}

using Source = RunTest;

TEST_F(Source, TokensOfStepsAndEvaluations) {
  config.model.context = kContext;
  apply_settings(config, "data.kind=bytes data.validation_fraction=0.25");
  std::string text(200, ' ');
  std::iota(text.begin(), text.end(), '\0');  // a token is its place
  std::ofstream(dir / "text.txt") << text;
  const auto source = train::open_source(config);
  EXPECT_EQ(source->validation_samples(), 9) << "50 tokens; the last one is a target only";

  const Batch batch = training(*source, 7, 1, kSamples);
  for (int64_t i = 0; i < kSamples; ++i) {
    for (int64_t t = 0; t < kContext; ++t) {
      const auto at = static_cast<size_t>(i * kContext + t);
      EXPECT_EQ(batch.tokens[at], batch.tokens[at - static_cast<size_t>(t)] + t);
      EXPECT_EQ(batch.targets[at], batch.tokens[at] + 1);
      EXPECT_LT(batch.targets[at], 150);
    }
  }
  expect_same_in_parts(*source);

  const Batch evaluated = validation(*source, 2, kSamples);
  for (size_t i = 0; i < evaluated.tokens.size(); ++i) {
    EXPECT_EQ(evaluated.tokens[i], 150 + 2 * kContext + static_cast<int64_t>(i));
    EXPECT_EQ(evaluated.targets[i], evaluated.tokens[i] + 1);
  }
}

TEST_F(Source, ImagesOfStepsAndEvaluations) {
  config.data = {
      .kind = "images", .train = {dir / "images", dir / "labels"}, .validation_fraction = 0.25};
  std::string pixels, labels;
  for (int image = 0; image < 40; ++image) {
    pixels += {static_cast<char>(image), static_cast<char>(2 * image)};
    labels += static_cast<char>(image);  // a label is the image's place
  }
  std::ofstream(dir / "images") << idx_file({40, 1, 2}, pixels);
  std::ofstream(dir / "labels") << idx_file({40}, labels);
  const auto source = train::open_source(config);
  EXPECT_EQ(source->validation_samples(), 10);
  const auto expect_pixels = [](const Batch& batch) {
    for (size_t i = 0; i < batch.targets.size(); ++i) {
      const auto place = static_cast<float>(batch.targets[i]);
      EXPECT_FLOAT_EQ(batch.inputs[2 * i], place / 255);
      EXPECT_FLOAT_EQ(batch.inputs[2 * i + 1], 2 * place / 255);
    }
  };
  const Batch batch = training(*source, 7, 1, kSamples);
  expect_pixels(batch);
  EXPECT_LT(std::ranges::max(batch.targets), 30);
  expect_same_in_parts(*source);

  const Batch evaluated = validation(*source, 2, kSamples);
  expect_pixels(evaluated);
  EXPECT_EQ(evaluated.targets, (std::vector<int32_t>{32, 33, 34}));
}

/// 24 images of CIFAR-10, with random views, by epochs.
io::Config cifar_config(const TempDir& dir) {
  io::Config config = tiny_config(dir);
  std::string records;
  for (int image = 0; image < 24; ++image) {
    records += cifar_record(image, std::string(1, static_cast<char>(image % 10)));
  }
  std::ofstream(dir / "train.bin", std::ios::binary) << records;
  config.data = {.kind = "images",
                 .train = {dir / "train.bin"},
                 .validation_fraction = 0.25,
                 .format = "cifar10",
                 .mean = {0.5, 0.4, 0.3},
                 .deviation = {0.25},
                 .crop = 4,
                 .flip = true,
                 .order = "epochs"};
  config.model.kind = "vision";
  config.model.image = {32, 32, 3};
  config.model.network = {"max 8", "conv 8 3", "mean"};
  return config;
}

TEST_F(Source, RandomViewsAreForTrainingOnly) {
  config = cifar_config(dir);
  const auto source = train::open_source(config);
  EXPECT_EQ(source->problem().image, (Shape{32, 32, 3}));
  EXPECT_EQ(source->problem().classes, 10);
  expect_same_in_parts(*source);
  apply_settings(config, "data.crop=0 data.flip=false");
  const auto plain = train::open_source(config);
  EXPECT_EQ(validation(*source, 0, kSamples), validation(*plain, 0, kSamples));
  const Batch seen = training(*source, 7, 1, kSamples);
  const Batch whole = training(*plain, 7, 1, kSamples);
  EXPECT_EQ(seen.targets, whole.targets);
  EXPECT_NE(seen.inputs, whole.inputs);
}

TEST_F(Source, RanksAndBreaksKeepViewsAndEpochs) {
  config = cifar_config(dir);
  config.train.steps = 6;  // 72 samples, 4 epochs of 18
  config.train.micro_batch = 2;
  config.run.out = dir / "one";
  const Outcome one = run(config);
  config.run.out = dir / "broken";
  EXPECT_EQ(run_with_breaks(config, 1, {1, 4}), one);
  for (const int ranks : {2, 3}) {
    config.run.out = dir / std::to_string(ranks);
    const Outcome many = run(config, ranks);
    EXPECT_THAT(many.losses, AreNear(one.losses, 1e-5)) << ranks;
  }
}

}  // namespace
}  // namespace espalier::source_test
