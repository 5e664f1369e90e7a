// A multilayer perceptron for classification: hidden layers, then a classifier.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "src/model/layers/perceptron.h"
#include "src/model/networks/registry.h"

namespace espalier::model {
namespace {

std::unique_ptr<Layer> make_layer(const io::ModelConfig& config, const ProblemShape& problem,
                                  size_t number) {
  const int64_t in = number == 0 ? problem.features : config.hidden[number - 1];
  if (number == config.hidden.size()) {
    return std::make_unique<Classifier>(in, problem.classes);
  }
  return std::make_unique<Hidden>(fmt::format("hidden.{}", number), in, config.hidden[number],
                                  number == 0);
}

ProblemShape problem_of(const io::ModelConfig&, const MatrixShape& shape) {
  return {.classes = shape("classifier.weight")[0],
          .features = shape("hidden.0.weight")[1],
          .rows = 1,
          .input_dtype = DType::fp32};
}

std::optional<io::ModelConfig> scaled_perceptron(const io::ModelConfig& config, double share) {
  io::ModelConfig scaled = config;
  for (int64_t& width : scaled.hidden) {
    width = std::max<int64_t>(1, std::llround(share * static_cast<double>(width)));
  }
  return scaled.hidden == config.hidden ? std::nullopt : std::optional(scaled);
}

constexpr std::array<std::string_view, 1> kDataKinds{"images"};

}  // namespace

extern const NetworkKind kMlp;
const NetworkKind kMlp{
    .name = "mlp",
    .help = "multilayer perceptron; classifies images",
    .data_kinds = kDataKinds,
    .input_dtype = DType::fp32,
    .check =
        [](const io::ModelConfig& config) {
          check(!config.hidden.empty(),
                "model.hidden is empty; give at least "
                "one width, e.g. [256, 256]");
        },
    .layer_count = [](const io::ModelConfig& config) { return config.hidden.size() + 1; },
    .make_layer = make_layer,
    .problem_of = problem_of,
    .identity = [](const io::ModelConfig&) { return Settings(); },
    .tied_parameter = [](const io::ModelConfig&) { return std::string_view(); },
    .scaled = scaled_perceptron,
    .describe =
        [](const io::ModelConfig& config, int64_t classes) {
          return fmt::format("mlp, hidden {}, {} classes", fmt::join(config.hidden, " "), classes);
        }};

}  // namespace espalier::model
