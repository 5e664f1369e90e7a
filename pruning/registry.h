#pragma once
// The pruning methods by name, each in a file of this folder (none and file: registry.cpp; rigl and
// set: drop_grow.cpp).
//
// To add one: a file with its Method, a line in registry.cpp, a row of a test. The config schema,
// the pruner (src/train/masks/) and the memory plan read everything else from the Method.
#include <array>

#include "io/config/config.h"
#include "pruning/pruning.h"
#include "src/core/registry.h"

namespace espalier::pruning {

/// The elements of a parameter that this rank updates, between the sum of their gradient and the
/// update; `arrays` persist over the run (sparse::StatePart::pruning1, 2).
struct GradientStep {
  std::span<const float> values;
  std::span<float> gradient;
  std::array<std::span<float>, 2> arrays;  ///< GradientLearning::arrays of them are not empty
};

/// Of methods that learn from every step of a window: steps 1 … at_step, or from_step + 1 …
/// to_step. Arrays start at zero, follow changes of masks, and are saved in checkpoints.
struct GradientLearning {
  int arrays = 1;
  /// Adds to the gradient, before its norm. Null: nothing.
  void (*add)(const io::PruningConfig& config, const GradientStep& learned) = nullptr;
  /// Reads the gradient of a step that will be applied. Null: nothing.
  void (*observe)(const GradientStep& learned) = nullptr;
  /// Writes the scores that `Method::run` reads as Candidate::scores: of all kept elements, from
  /// whole arrays.
  void (*score)(std::span<const float> values, std::span<const std::vector<float>> arrays,
                std::span<float> scores) = nullptr;
  /// Changes the arrays at the window's begin (`first`) and each `every` steps, given the mask that
  /// `Method::run` would make of `candidate` (with scores). Null: nothing.
  void (*project)(const Candidate& candidate, const sparse::Mask& mask, bool first,
                  std::span<std::vector<float>> arrays) = nullptr;
  /// Masks change once, at the end of the window, also with from_step and to_step.
  bool prunes_at_end = false;
};

/// The growth of one layer, for methods whose masks move.
struct Growth {
  std::string_view name;  ///< of the parameter
  int64_t count = 0;      ///< elements to add
  uint64_t seed = 1;
  int64_t step = 0;
  int64_t columns = 1;                ///< of the matrix view
  std::span<const float> gradient{};  ///< dense; empty unless the method needs gradients
};

/// The statistic of a matrix's inputs x [R, in] that a method reads: squares are summed in fp64,
/// products in fp32.
enum class InputStatistic : uint8_t {
  none,
  squares,   ///< [in] sums over the rows of x_j²
  products,  ///< [in, in] sums over the rows of x_i x_j
};

struct Method {
  std::string_view name;
  std::string_view help;
  /// Computes masks within the current ones. Null: masks come from a file, or `prune_matrix`.
  Result (*run)(std::span<const Candidate> candidates, const Settings& settings) = nullptr;
  bool needs_values = true;      ///< `run` reads Candidate::values
  bool random = false;           ///< draws: reads Settings::seed
  bool by_layer = false;         ///< prunes each parameter alone, for any scope
  Scope scope = Scope::global;   ///< default
  bool needs_paths = false;      ///< `run` computes its scores from Settings::paths
  bool needs_gradients = false;  ///< `score` or `grow` reads dense gradients of a pass
  /// Adds the saliency of one batch, computed from its dense gradient, to the scores of the kept
  /// elements (packed). `run` then reads Candidate::scores.
  void (*score)(const Candidate& candidate, std::span<const float> gradient,
                std::span<float> scores) = nullptr;
  /// The same for the same batches once more, at values moved along the scores by kShift of their
  /// norm (both over all candidates). Needs fp32. Null: no second passes.
  void (*score_shifted)(const Candidate& candidate, std::span<const float> gradient,
                        std::span<float> scores) = nullptr;
  static constexpr double kShift = 0.001;
  const GradientLearning* learning = nullptr;  ///< null: does not learn from every step
  /// Methods for trained weights with calibration data: the statistic that `prune_matrix` reads.
  InputStatistic inputs = InputStatistic::none;
  /// Computes the mask of one matrix [out, in] within the current one. May change `values`, those
  /// of the kept elements (packed); values of elements that it prunes have no meaning afterwards.
  Result (*prune_matrix)(const Candidate& matrix, std::vector<double> statistic,
                         const Settings& settings, std::span<float> values) = nullptr;
  /// Prunes once, when masks are stable (early_bird.h); at to_step at the latest.
  bool waits = false;
  /// Adds Growth::count elements to a mask; masks then move at constant density (drop_grow.h).
  /// `run` computes the first masks unless they are random.
  void (*grow)(const Growth& growth, sparse::Mask& mask) = nullptr;
  /// Zeros / prunable elements, if settings other than `sparsity` determine them. Null: `sparsity`.
  double (*sparsity)(const io::PruningConfig& config) = nullptr;
  /// The groups or blocks that form every mask. Null: single elements.
  sparse::IndexShape (*shape)(const io::PruningConfig& config) = nullptr;
  int64_t every = 10;  ///< default of pruning.every
  /// Throws Failure for settings that do not fit together. Null: no check.
  void (*check_config)(const io::PruningConfig& config) = nullptr;

  bool moving() const { return grow != nullptr; }
  bool reads_inputs() const { return inputs != InputStatistic::none; }
  bool from_file() const { return run == nullptr && !reads_inputs(); }
  bool has_scores() const { return score != nullptr || learning != nullptr; }
  int arrays() const { return learning != nullptr ? learning->arrays : 0; }
  /// Whether masks can be computed for weights at rest, without training.
  bool without_training() const {
    return !from_file() && !needs_gradients && !moving() && learning == nullptr && !waits;
  }
};

Registry<Method> methods();
/// Throws Failure that lists the names.
const Method& method_by_name(std::string_view name);

/// Throws Failure: method `name` is for `espalier prune`, not for runs.
[[noreturn]] void fail_in_runs(std::string_view name);

/// Runs the settings' method with Method::prune_matrix. `values` may be matrix.values.
/// Throws Failure for settings out of range and for a NaN value.
Result prune_matrix(const Candidate& matrix, std::vector<double> statistic,
                    const Settings& settings, std::span<float> values);

/// Of config.method:
const Method& method_of(const io::PruningConfig& config);
bool masks_are_blocks(const io::PruningConfig& config);
/// The sparsity that the masks reach.
double sparsity_of(const io::PruningConfig& config);
Scope scope_of(const io::PruningConfig& config);
Settings settings_of(const io::PruningConfig& config, uint64_t seed);
/// Whether the method reads a key of [pruning] with these settings.
bool reads_key(const io::PruningConfig& config, std::string_view key);
/// Steps between two changes of masks, or of the arrays of a learning method.
int64_t interval_of(const io::PruningConfig& config);

}  // namespace espalier::pruning
