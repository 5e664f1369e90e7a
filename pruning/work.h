#pragma once
// A pruning method at work in a run: it proposes masks when it is due, and may read or change
// gradients. The kinds of methods (registry.h) implement it, each in a file of kinds/.
//
// The run drives it (src/train/masks/pruner.h): due? → propose → all ranks agree → apply. Ranks
// hold different parameters (stages), or the same ones (replicas, whose proposals must be equal).
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pruning/early_bird.h"
#include "pruning/pruning.h"
#include "sparse/store/store.h"

namespace espalier::pruning {

/// The weights of a rank. All must outlive the work.
struct Weights {
  sparse::Store& store;
  const std::vector<bool>& prunable;        ///< flags over the store's parameters
  const GlobalSelection* stages = nullptr;  ///< the candidates of other ranks; null: there are none
};

struct RunSettings {
  io::PruningConfig config;
  uint64_t seed = 1;
  int64_t steps = 0;  ///< of the run
  /// The masks of pruning.file within the present ones, of all parameters of the store.
  std::function<std::vector<sparse::Mask>()> masks_of_file{};
};

/// Facts of a run, beside its [pruning], that its config is checked by.
struct RunFacts {
  int64_t steps = 0;
  bool half = false;          ///< values have 16 bits
  bool asynchronous = false;  ///< stages are updated separately
};

using UseGradient = std::function<void(size_t p, std::span<const float> gradient)>;
/// Calls use(p, dense gradient) once for each wanted parameter of the store: the sum over samples
/// and replicas of the `batch`-th step after the present one. Collective.
using Gradients = std::function<void(int64_t batch, const std::vector<bool>& wanted,
                                     sparse::Store::Probed probed, const UseGradient& use)>;

struct Proposal {
  std::vector<sparse::Mask> masks{};  ///< of all parameters; empty: no masks were computed
  bool applies = true;                ///< false: masks stay; those above are compared over ranks
  std::vector<std::string> warnings{};
  std::string note{};  ///< for the user, when masks change; empty: none
  /// Of methods that wait: the largest distance to earlier masks, once there are enough of them.
  std::optional<double> distance{};
};

/// Callbacks for the gradient of step `step` + 1, which is too large by `scale`. Empty ones do
/// nothing.
struct GradientWork {
  std::function<void(int64_t step, double scale)> add{};      ///< before the norm
  std::function<void(int64_t step, double scale)> observe{};  ///< if the step will be applied
};

class Work {
 public:
  virtual ~Work() = default;
  /// Whether `propose` is to be called after `steps` optimizer steps (0: before the first one).
  virtual bool due(int64_t steps) const = 0;
  virtual Proposal propose(int64_t steps, const Gradients& gradients) = 0;
  /// The sparsity aimed at after `steps`.
  virtual double target(int64_t steps) const = 0;
  virtual GradientWork gradient_work() { return {}; }
  /// The masks of earlier steps, of methods that wait; null: none are kept.
  virtual MaskHistory* history() { return nullptr; }
  /// Continues at `steps`. Returns whether `history` is to be filled from the checkpoint, which
  /// holds one if `saved`.
  virtual bool resume(int64_t /*steps*/, bool /*saved*/) { return false; }
};

/// Null: the method never prunes. Throws Failure for schedules that cannot be.
std::unique_ptr<Work> start(RunSettings settings, const Weights& weights);

/// Runs settings.method on the prunable parameters of a store; other masks stay. Returns masks of
/// all parameters.
Result prune(const Weights& weights, Settings settings);

}  // namespace espalier::pruning
