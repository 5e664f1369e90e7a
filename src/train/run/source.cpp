#include "src/train/run/source.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "io/data/images.h"

namespace espalier::train {
namespace {

int64_t samples_in(const Tensor& inputs, const Tensor& targets, int64_t rows) {
  return inputs ? inputs.rows() : targets ? targets.count() / rows : 0;
}

/// The files of data.validation as the only ones.
io::DataConfig validation_alone(io::DataConfig data) {
  data.train = std::exchange(data.validation, {});
  data.validation_fraction = 0;
  return data;
}

/// With `alone`, only the files of data.validation are opened.
template <class Dataset, class... Options>
std::optional<Dataset> open_training(const io::DataConfig& data, bool alone,
                                     const Options&... options) {
  return alone ? std::nullopt : std::optional(Dataset::open(data, io::Split::train, options...));
}
template <class Dataset, class... Options>
Dataset open_validation(const io::DataConfig& data, bool alone, const Options&... options) {
  return alone ? Dataset::open(validation_alone(data), io::Split::train, options...)
               : Dataset::open(data, io::Split::validation, options...);
}

class Tokens final : public Source {
 public:
  Tokens(const io::Config& config, const io::Vocabulary* characters, bool alone)
      : seed_(config.train.seed),
        context_(config.model.context),
        train_(open_training<io::TokenDataset>(config.data, alone, options(config, characters))),
        validation_(
            open_validation<io::TokenDataset>(config.data, alone, options(config, characters))) {}

  ProblemShape problem() const override {
    return {.classes = std::max(train_ ? train_->vocabulary() : 0, validation_.vocabulary()),
            .features = context_,
            .rows = context_,
            .input_dtype = DType::int32};
  }
  int64_t validation_samples() const override { return validation_.evaluation_windows(context_); }
  io::Vocabulary characters() const override { return validation_.characters(); }

  void train(int64_t step, int64_t first, const Tensor& inputs,
             const Tensor& targets) const override {
    for (int64_t i = 0; i < samples_in(inputs, targets, context_); ++i) {
      copy_window(*train_, train_->window_start(seed_, step, first + i, context_), i, inputs,
                  targets);
    }
  }
  void validation(int64_t first, const Tensor& inputs, const Tensor& targets) const override {
    for (int64_t i = 0; i < samples_in(inputs, targets, context_); ++i) {
      copy_window(validation_, (first + i) * context_, i, inputs, targets);
    }
  }

 private:
  static io::TokenDataset::Options options(const io::Config& config,
                                           const io::Vocabulary* characters) {
    return {.context = config.model.context,
            .vocabulary = config.model.vocabulary,
            .characters = characters};
  }

  /// Targets are the inputs moved by one token.
  void copy_window(const io::TokenDataset& data, int64_t start, int64_t row, const Tensor& inputs,
                   const Tensor& targets) const {
    std::vector<int32_t> window(static_cast<size_t>(context_) + 1);
    data.read(start, window);
    if (inputs) {
      std::copy(window.begin(), window.end() - 1, inputs.get<int32_t>() + row * context_);
    }
    if (targets) {
      std::copy(window.begin() + 1, window.end(), targets.get<int32_t>() + row * context_);
    }
  }

  int64_t seed_;
  int64_t context_;
  std::optional<io::TokenDataset> train_;  ///< none with `alone`
  io::TokenDataset validation_;
};

class Images final : public Source {
 public:
  Images(const io::Config& config, bool alone)
      : seed_(config.train.seed),
        global_batch_(config.train.global_batch),
        train_(open_training<io::ImageDataset>(config.data, alone)),
        validation_(open_validation<io::ImageDataset>(config.data, alone)),
        classes_(std::max(train_ ? train_->classes() : 0, validation_.classes())) {
    const int64_t given = config.model.classes;
    check(
        given == 0 || classes_ <= given,
        "the data have labels up to {}, but model.classes is {}; set model.classes to {} or more, "
        "or to 0",
        classes_ - 1, given, classes_);
    classes_ = std::max(classes_, given);
  }

  ProblemShape problem() const override {
    return {.classes = classes_,
            .features = validation_.numbers(),
            .rows = 1,
            .input_dtype = DType::fp32,
            .image = validation_.extents()};
  }
  int64_t validation_samples() const override { return validation_.size(); }

  void train(int64_t step, int64_t first, const Tensor& inputs,
             const Tensor& targets) const override {
    for (int64_t i = 0; i < samples_in(inputs, targets, 1); ++i) {
      const io::DrawnImage drawn = train_->draw(
          {.seed = seed_, .step = step, .index = first + i, .global_batch = global_batch_});
      copy_image(*train_, drawn, i, inputs, targets);
    }
  }
  void validation(int64_t first, const Tensor& inputs, const Tensor& targets) const override {
    for (int64_t i = 0; i < samples_in(inputs, targets, 1); ++i) {
      copy_image(validation_, {.image = first + i, .view = {}}, i, inputs, targets);
    }
  }

 private:
  static void copy_image(const io::ImageDataset& data, const io::DrawnImage& drawn, int64_t row,
                         const Tensor& inputs, const Tensor& targets) {
    if (inputs) {
      data.read(drawn.image, inputs.row_range(row, 1).span<float>(), drawn.view);
    }
    if (targets) {
      targets.get<int32_t>()[row] = data.label(drawn.image);
    }
  }

  int64_t seed_;
  int64_t global_batch_;
  std::optional<io::ImageDataset> train_;  ///< none with `alone`
  io::ImageDataset validation_;
  int64_t classes_;
};

}  // namespace

int64_t evaluation_samples(const Source& source, const io::Config& config, int64_t batches) {
  const int64_t all = source.validation_samples();
  return batches > 0 ? std::min(all, batches * config.train.global_batch) : all;
}

std::unique_ptr<Source> open_source(const io::Config& config, const io::Vocabulary* characters,
                                    bool evaluation) {
  // The characters of a text are those of all its files.
  const bool knows_tokens = config.data.kind != "chars" || characters != nullptr;
  const bool alone = evaluation && !config.data.validation.empty() && knows_tokens;
  if (config.data.kind == "images") {
    return std::make_unique<Images>(config, alone);
  }
  return std::make_unique<Tokens>(config, characters, alone);
}

}  // namespace espalier::train
