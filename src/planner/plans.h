#pragma once
// Predicted layouts over one or more numbers of ranks, the best of them, and how a run scales.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/planner/search.h"

namespace espalier::planner {

/// Layouts over `ranks` ranks that were left out.
struct Refused {
  int ranks = 1;
  size_t layouts = 0, tried = 0;
  std::string reason;
};

struct PlannedLayout {
  StepPrediction step;
  io::Config config;                 ///< of the prediction: the run's, with the choices of a search
  std::optional<double> measured{};  ///< seconds of a step (trial.h)
};

/// A layout over a number of ranks, or the reason why there is none.
struct ScalingPoint {
  int ranks = 1;
  int64_t stages = 0;  ///< the best with so many stages; 0: the best of all
  std::optional<PlannedLayout> layout{};
  std::string refused{};
};

struct Plans {
  std::vector<PlannedLayout> found;  ///< by ascending ranks, the fastest first
  std::vector<Refused> refused;
  std::vector<ScalingPoint> by_stages;  ///< of a search
  std::vector<ScalingPoint> own;  ///< of a search: the layouts that the config has without one
};

/// How a layout compares with the best of its ranks: "+3.1 %: waiting +12 ms", with the part of the
/// step that adds most; "best".
std::string beside(const StepPrediction& best, const StepPrediction& other);

/// Whether the devices have memory for the rank that needs most.
bool fits(const StepPrediction& step, const Machine& machine, const TensorSplit& tensor);

/// Of a layout that does not fit: what a rank needs, and the settings that need less.
std::string shortage(const PlannedRun& run, const Machine& machine, const PlannedLayout& layout);

/// The storage in which the layers compute in less than 0.8 of the time of the layout's storage, if
/// that is one for all pruned weights.
struct FasterStorage {
  std::string storage;
  double share = 1;  ///< of the time
};
std::optional<FasterStorage> faster_storage(const PlannedRun& run, const Machine& machine,
                                            const PlannedLayout& layout);

/// A part of a run after its masks have grown (pruning.dense_from_step).
struct LaterPart {
  int64_t after = 0;  ///< steps
  double sparsity = 0;
  double seconds = 0;  ///< of a step
};
/// Those of a layout, by ascending steps.
std::vector<LaterPart> later_parts(const PlannedRun& run, const Machine& machine,
                                   const PlannedLayout& layout);

/// With `search` the ten fastest layouts over each number of ranks (search.h); without, the
/// config's own. There storage "auto" becomes the one that is fastest for all matrices (a run takes
/// the fastest for each), and pipeline "auto" the stages that a run would take. Throws Failure for
/// a number of ranks without a layout.
Plans plan_layouts(const PlannedRun& run, const Machine& machine, std::span<const int> ranks,
                   const std::optional<SearchOptions>& search);

/// The fastest that fits; if none does, the fastest.
size_t best_of(std::span<const PlannedLayout> found, const Machine& machine,
               const TensorSplit& tensor);

/// The best layouts of the same run without pruning, in dense storage.
std::vector<ScalingPoint> dense_scaling(const PlannedRun& run, const Machine& machine,
                                        std::span<const int> ranks,
                                        const std::optional<SearchOptions>& search);
/// The best of layouts that are planned already.
std::vector<ScalingPoint> scaling_of(const Plans& plans, const Machine& machine,
                                     const TensorSplit& tensor, std::span<const int> ranks);

}  // namespace espalier::planner
