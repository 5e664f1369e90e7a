#pragma once
// The pruning methods by name, each in a file of this folder (none and file: registry.cpp; rigl and
// set: drop_grow.cpp).
//
// To add one: a file with its Method, a line in registry.cpp, a row of a test. The config schema,
// the pruner (src/train/masks/) and the memory plan read everything else from the Method.
#include "io/config/config.h"
#include "pruning/pruning.h"
#include "src/core/registry.h"

namespace espalier::pruning {

/// The growth of one layer, for methods whose masks move.
struct Growth {
  std::string_view name;  ///< of the parameter
  int64_t count = 0;      ///< elements to add
  uint64_t seed = 1;
  int64_t step = 0;
  std::span<const float> gradient{};  ///< dense; empty unless the method needs gradients
};

struct Method {
  std::string_view name;
  std::string_view help;
  /// Computes masks within the current ones. Null: masks come from a file.
  Result (*run)(std::span<const Candidate> candidates, const Settings& settings) = nullptr;
  bool needs_values = true;      ///< `run` reads Candidate::values
  bool by_layer = false;         ///< prunes each parameter alone, for any scope
  bool needs_gradients = false;  ///< `score` or `grow` reads dense gradients of a pass
  /// Adds the saliency of one batch, computed from its dense gradient, to the scores of the kept
  /// elements (packed). `run` then reads Candidate::scores.
  void (*score)(const Candidate& candidate, std::span<const float> gradient,
                std::span<float> scores) = nullptr;
  /// Adds Growth::count elements to a mask; masks then move at constant density (drop_grow.h).
  /// `run` computes the first masks unless they are random.
  void (*grow)(const Growth& growth, sparse::Mask& mask) = nullptr;
  /// Zeros / prunable elements, if settings other than `sparsity` determine them. Null: `sparsity`.
  double (*sparsity)(const io::PruningConfig& config) = nullptr;
  /// The groups or blocks that form every mask. Null: single elements.
  sparse::IndexShape (*shape)(const io::PruningConfig& config) = nullptr;
  /// Throws Failure for settings that do not fit together. Null: no check.
  void (*check_config)(const io::PruningConfig& config) = nullptr;

  bool moving() const { return grow != nullptr; }
  bool from_file() const { return run == nullptr; }
  /// Whether masks can be computed from values alone, without training.
  bool without_training() const { return run != nullptr && !needs_gradients && !moving(); }
};

Registry<Method> methods();
/// Throws Failure that lists the names.
const Method& method_by_name(std::string_view name);

/// Of config.method:
const Method& method_of(const io::PruningConfig& config);
bool makes_blocks(const io::PruningConfig& config);
/// The sparsity that the masks reach.
double sparsity_of(const io::PruningConfig& config);
Settings settings_of(const io::PruningConfig& config, uint64_t seed);
/// Steps between two changes of masks; default: 100 if masks move, else 10.
int64_t interval_of(const io::PruningConfig& config);

}  // namespace espalier::pruning
