#pragma once
// Networks: decoder.cpp (two kinds), mlp.cpp, vision.cpp; the list is in registry.cpp. The entry of
// a network holds everything that depends on `model.kind`; of the other code only src/hub compares
// that name.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/config/config.h"
#include "src/core/registry.h"
#include "src/model/layer.h"

namespace espalier::model {

/// The extents of a network that the data determine.
struct ProblemShape {
  int64_t classes = 256;  ///< vocabulary, or image classes
  int64_t features = 64;  ///< context, or pixels
  int64_t rows = 64;      ///< predictions a sample
  DType input_dtype = DType::int32;
  Shape image{};  ///< of images: [height, width, channels]; rank 0: unknown

  /// One prediction a sample, whose accuracy evaluations measure; else predictions are of tokens.
  bool classifies_images() const { return input_dtype == DType::fp32; }
};

/// Shape of a matrix in a file of weights, by parameter name; throws Failure if there is none.
using MatrixShape = std::function<Shape(const std::string& parameter)>;
/// (key of [model], value).
using Settings = std::vector<std::pair<std::string_view, std::string>>;

struct NetworkKind {
  std::string_view name;
  std::string_view help;
  std::span<const std::string_view> data_kinds;  ///< values of data.kind that it learns from
  DType input_dtype = DType::int32;              ///< int32: tokens; fp32: features
  /// Rules across keys of [model]. Throws Failure.
  void (*check)(const io::ModelConfig& config) = nullptr;
  size_t (*layer_count)(const io::ModelConfig& config) = nullptr;
  /// Layer 0, 1, ... layer_count - 1.
  std::unique_ptr<Layer> (*make_layer)(const io::ModelConfig& config, const ProblemShape& problem,
                                       size_t number) = nullptr;
  /// The problem of trained weights.
  ProblemShape (*problem_of)(const io::ModelConfig& config, const MatrixShape& shape) = nullptr;
  /// Settings that a checkpoint must share and that the shapes of its parameters do not determine.
  Settings (*identity)(const io::ModelConfig& config) = nullptr;
  /// Name of the parameter that the first layer owns and the last layer uses; empty: none.
  std::string_view (*tied_parameter)(const io::ModelConfig& config) = nullptr;
  /// [height, width, channels] of the images that it reads; null: of any.
  Shape (*image)(const io::ModelConfig& config) = nullptr;
  /// The network with about `share` of its width; none: no such width fits its heads. Null: the
  /// network has no width.
  std::optional<io::ModelConfig> (*scaled)(const io::ModelConfig& config, double share) = nullptr;
  /// "gpt, 4 layers, ...".
  std::string (*describe)(const io::ModelConfig& config, int64_t classes) = nullptr;
};

/// All networks.
Registry<NetworkKind> networks();
/// Throws Failure that lists the names.
const NetworkKind& network_of(const io::ModelConfig& config);

/// All layers of the network. Throws Failure if it cannot read the problem's inputs.
Layers make_layers(const io::ModelConfig& config, const ProblemShape& problem);

}  // namespace espalier::model
