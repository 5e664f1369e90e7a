#pragma once
// The pruning methods by name, each in a file of this folder (none and file: registry.cpp; rigl and
// set: drop_grow.cpp; those of N:M groups: nm.cpp; those of blocks: block.cpp).
//
// To add one: a file with its Method, a line in registry.cpp, a row of a test. The config schema,
// runs and memory plans read everything else from the Method, through work.h and plan.h. An option
// that no method has yet: CONTRIBUTING.md.
#include <array>
#include <variant>

#include "io/config/config.h"
#include "pruning/candidate.h"
#include "src/core/registry.h"

namespace espalier::pruning {

/// Masks are computed once, or gradually from from_step to to_step: of values, at random, or of
/// scores by the gradients of a few batches. A method without Method::run takes those of
/// pruning.file.
struct OneShot {
  /// Adds the saliency of one batch, computed from its dense gradient, to the scores of the kept
  /// elements (packed). Method::run then reads Candidate::scores. Null: no scores.
  void (*score)(const Candidate& candidate, std::span<const float> gradient,
                std::span<float> scores) = nullptr;
  /// The same for the same batches once more, at values moved along the scores by kShift of their
  /// norm (both over all candidates). Needs fp32. Null: no second passes.
  void (*score_shifted)(const Candidate& candidate, std::span<const float> gradient,
                        std::span<float> scores) = nullptr;
  static constexpr double kShift = 0.001;
  /// Prunes once, when masks are stable (early_bird.h); at to_step at the latest.
  bool waits = false;
};

/// The growth of one layer.
struct Growth {
  std::string_view name;  ///< of the parameter
  int64_t count = 0;      ///< elements to add
  uint64_t seed = 1;
  int64_t step = 0;
  int64_t columns = 1;                   ///< of the matrix view
  std::span<const float> gradient{};     ///< dense; empty unless Moving::by_gradient
  int64_t group = 0;                     ///< N:M: consecutive elements of a row; 0: no groups
  const sparse::Mask* before = nullptr;  ///< N:M: each group grows to the number that it keeps here
};

/// Masks move at constant density (drop_grow.h). Method::run computes the first ones unless they
/// are random.
struct Moving {
  void (*grow)(const Growth& growth, sparse::Mask& mask) = nullptr;  ///< adds Growth::count
  bool by_gradient = false;
  std::string_view start = "random";  ///< the method of random first masks
};

/// The elements of a parameter that this rank updates, between the sum of their gradient and the
/// update; `arrays` persist over the run (sparse::StatePart::pruning1, 2).
struct GradientStep {
  std::span<const float> values;
  std::span<float> gradient;
  std::array<std::span<float>, 2> arrays;  ///< Learning::arrays of them are not empty
};

/// Masks follow from every step of a window: steps 1 … at_step, or from_step + 1 … to_step. Arrays
/// start at zero, follow changes of masks, and are saved in checkpoints.
struct Learning {
  int arrays = 1;
  /// Adds to the gradient, before its norm. Null: nothing.
  void (*add)(const GradientStep& learned) = nullptr;
  /// Reads the gradient of a step that will be applied. Null: nothing.
  void (*observe)(const GradientStep& learned) = nullptr;
  /// Writes the scores that Method::run reads as Candidate::scores: of all kept elements, from
  /// whole arrays.
  void (*score)(std::span<const float> values, std::span<const std::vector<float>> arrays,
                std::span<float> scores) = nullptr;
  /// Changes the arrays at the window's begin (`first`) and each `every` steps, given the mask that
  /// Method::run would make of `candidate` (with scores). Null: nothing.
  void (*project)(const Candidate& candidate, const sparse::Mask& mask, bool first,
                  std::span<std::vector<float>> arrays) = nullptr;
  /// Masks change once, at the end of the window, also with from_step and to_step.
  bool prunes_at_end = false;
};

/// The statistic of a matrix's inputs x [R, in] that a method reads: squares are summed in fp64,
/// products in fp32.
enum class InputStatistic : uint8_t {
  none,
  squares,   ///< [in] sums over the rows of x_j²
  products,  ///< [in, in] sums over the rows of x_i x_j
};

/// Masks of trained weights at rest, from calibration data (`espalier prune`).
struct Calibrated {
  InputStatistic inputs = InputStatistic::none;
  /// Computes the mask of one matrix [out, in] within the current one. May change `values`, those
  /// of the kept elements (packed); values of elements that it prunes have no meaning afterwards.
  Result (*prune)(const Candidate& matrix, std::vector<double> statistic, const Settings& settings,
                  std::span<float> values) = nullptr;
};

/// A kind decides when its methods act in a run, what they read, and their checks (kinds/).
using Kind = std::variant<OneShot, Moving, Learning, Calibrated>;

struct Method {
  std::string_view name;
  std::string_view help;
  /// Computes masks within the current ones. Null: masks come from a file, or from Calibrated.
  Result (*run)(std::span<const Candidate> candidates, const Settings& settings) = nullptr;
  bool needs_values = true;     ///< `run` reads Candidate::values
  bool random = false;          ///< draws: reads Settings::seed
  bool by_layer = false;        ///< prunes each parameter alone, for any scope
  Scope scope = Scope::global;  ///< default
  /// Zeros / prunable elements, if settings other than `sparsity` determine them. Null: `sparsity`.
  double (*sparsity)(const io::PruningConfig& config) = nullptr;
  /// The groups or blocks that form every mask. Null: single elements.
  sparse::IndexShape (*shape)(const io::PruningConfig& config) = nullptr;
  int64_t every = 10;  ///< default of pruning.every
  /// Throws Failure for settings that do not fit together. Null: no check.
  void (*check_config)(const io::PruningConfig& config) = nullptr;
  Kind kind = OneShot{};
};

Registry<Method> methods();
/// Throws Failure that lists the names.
const Method& method_by_name(std::string_view name);

/// Of config.method:
const Method& method_of(const io::PruningConfig& config);
/// The sparsity that the masks reach.
double sparsity_of(const io::PruningConfig& config);
Scope scope_of(const io::PruningConfig& config);
/// Throws Failure that lists the names.
Scope scope_by_name(std::string_view name);
Settings settings_of(const io::PruningConfig& config, uint64_t seed);
/// Whether masks can be computed for weights at rest, without training.
bool works_at_rest(const Method& method);
/// Whether `run` reads Candidate::scores.
bool reads_scores(const Method& method);
/// Steps between two changes of masks, or of the arrays of a learning method.
int64_t interval_of(const io::PruningConfig& config);

}  // namespace espalier::pruning
