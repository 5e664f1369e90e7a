// Networks that classify images. `model.network` lists their layers (image_layers.h); a classifier
// follows the last one. Layer n has the name "n.KIND", its parameters are "n.conv.weight" and so
// on.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "src/model/layers/perceptron.h"
#include "src/model/networks/image_layers.h"
#include "src/model/networks/registry.h"

namespace espalier::model {
namespace {

Images image_of(const io::ModelConfig& config) {
  check(config.image.size() == 3, "model.image must be [height, width, channels]");
  return {config.image[0], config.image[1], config.image[2]};
}

Shape shape_of_image(const io::ModelConfig& config) {
  const Images images = image_of(config);
  return {images.height, images.width, images.channels};
}

std::vector<LayerEntry> entries_of(const io::ModelConfig& config) {
  Images images = image_of(config);
  std::vector<LayerEntry> entries;
  for (const std::string& line : config.network) {
    const auto [times, text] = repeated(line);
    for (int64_t i = 0; i < times; ++i) {
      entries.push_back(read_layer(text, images, entries.empty() ? "" : entries.back().text));
      images = entries.back().layer.to;
    }
  }
  check(!images.tokens, "model.network: '{}' is the last layer and gives {}; add 'token-mean'",
        entries.empty() ? "" : entries.back().text, images.text());
  return entries;
}

std::unique_ptr<Layer> make_layer(const io::ModelConfig& config, const ProblemShape& problem,
                                  size_t number) {
  const Images images = image_of(config);
  const Shape image = shape_of_image(config);
  check(problem.image.rank() == 0 || problem.image == image,
        "model.image = {}, but the images of the data are {} (height, width, channels); set "
        "model.image = {}",
        image.text(), problem.image.text(), problem.image.text());
  check(images.count() == problem.features,
        "model.image = {} has {} numbers, but the images of the data have {}; set model.image to "
        "their [height, width, channels]",
        images.text(), images.count(), problem.features);
  const std::vector<LayerEntry> entries = entries_of(config);
  if (number == entries.size()) {
    return std::make_unique<Classifier>(entries.back().layer.to.count(), problem.classes);
  }
  const LayerEntry& entry = entries[number];
  const bool last = number + 1 == entries.size();
  return entry.layer.make({.name = fmt::format("{}.{}", number, entry.kind->name),
                           .first = number == 0,
                           .flat = last || entries[number + 1].kind->reads_vectors,
                           .norm = config.norm,
                           .blocks = std::ranges::count_if(
                               entries, [](const LayerEntry& e) { return e.kind->block; })});
}

size_t layer_count(const io::ModelConfig& config) {
  size_t count = 1;
  for (const std::string& line : config.network) {
    count += static_cast<size_t>(repeated(line).first);
  }
  return count;
}

ProblemShape problem_of(const io::ModelConfig& config, const MatrixShape& shape) {
  return {.classes = shape("classifier.weight")[0],
          .features = image_of(config).count(),
          .rows = 1,
          .input_dtype = DType::fp32,
          .image = shape_of_image(config)};
}

/// model.norm decides only about layers that read tokens.
Settings identity(const io::ModelConfig& config) {
  Settings settings{{"network", fmt::format("{}", fmt::join(config.network, ", "))},
                    {"image", fmt::format("{}", fmt::join(config.image, " x "))}};
  if (std::ranges::any_of(entries_of(config),
                          [](const LayerEntry& entry) { return entry.kind->reads_tokens; })) {
    settings.emplace_back("norm", config.norm);
  }
  return settings;
}

constexpr std::array<std::string_view, 1> kDataKinds{"images"};

}  // namespace

extern const NetworkKind kVision;
const NetworkKind kVision{
    .name = "vision",
    .help = "convolutional network or vision transformer; classifies images",
    .data_kinds = kDataKinds,
    .input_dtype = DType::fp32,
    .check =
        [](const io::ModelConfig& config) {
          check(!config.network.empty(),
                "model.network is empty; list the layers, e.g. [\"conv 32 3\", \"max 2\"]");
          entries_of(config);
        },
    .layer_count = layer_count,
    .make_layer = make_layer,
    .problem_of = problem_of,
    .identity = identity,
    .tied_parameter = [](const io::ModelConfig&) { return std::string_view(); },
    .image = shape_of_image,
    .describe =
        [](const io::ModelConfig& config, int64_t classes) {
          return fmt::format("vision, {}, {} classes", fmt::join(config.network, ", "), classes);
        }};

}  // namespace espalier::model
