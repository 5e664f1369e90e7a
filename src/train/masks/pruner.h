#pragma once
// Applies a pruning method to a store: decides when it is due, selects the candidates that config
// and model allow, and checks that all ranks have the same masks.
//
// Some methods need dense gradients: RigL those of pruned elements, SNIP and GraSP those of several
// batches. Extra passes compute them layer by layer (Store::set_gradient_probe), summed exactly
// over samples and ranks (sample_gradients.h). Cost of a pass: the fp32 gradient of one layer in
// addition to the arrays of a step. Values and scores take 8 bytes of host memory per kept
// element.
//
// Methods with pruning::GradientLearning see the summed gradient of every step of their window
// (`gradient_hooks`), each rank the elements that it updates. This runs on the host, one parameter
// at a time, in fp32 copies of its values and gradient.
#include <functional>
#include <optional>

#include "io/checkpoint/checkpoint.h"
#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "pruning/early_bird.h"
#include "pruning/registry.h"
#include "pruning/schedule.h"
#include "sparse/store/store.h"
#include "src/optim/optimizer.h"
#include "src/train/masks/sample_gradients.h"

namespace espalier::train {

/// The place of a store in the network.
struct StoreScope {
  std::vector<sparse::ParameterSpec> network{};  ///< all parameters, in forward order
  std::vector<size_t> numbers{};                 ///< of the store's parameters, in its order
  parallel::Communicator* stages = nullptr;  ///< have the other parameters; null: there are none
  int64_t micro_batch = 1;                   ///< samples; matters with batch norm
  int replicas = 1;
};

/// Sparsity (zeros / prunable elements) and counts of a store under this config.
struct Sparsity {
  int64_t prunable = 0;
  int64_t prunable_kept = 0;
  double sparsity() const {
    return prunable == 0 ? 0.0
                         : 1.0 - static_cast<double>(prunable_kept) / static_cast<double>(prunable);
  }
};

/// The result of a change of masks.
struct Change {
  bool masks = true;                  ///< false: they stay as they are
  std::vector<std::string> warnings;  ///< for the user
  int64_t grown = 0;                  ///< elements that were pruned before
  /// Of methods that wait: the largest distance to earlier masks, once there are enough of them.
  std::optional<double> distance{};
};

/// The use that a learning method makes of a gradient (pruning::GradientLearning).
enum class GradientUse : uint8_t { add, observe };

class Pruner {
 public:
  /// Throws Failure for an exclude pattern without a match, and for invalid schedules.
  Pruner(const io::Config& config, sparse::Store& store, const StoreScope& scope = {});

  /// Whether masks change after `steps` optimizer steps (0: before the first one).
  bool due(int64_t steps) const;
  /// Computes and applies new masks. Throws Failure naming parameter and ranks when masks differ.
  /// `comm`: ranks that hold the same parameters.
  ///
  /// `pass`: of samples of step `steps` + batch. Methods that need gradients call it.
  Change change(int64_t steps, parallel::Communicator& comm, const GradientPass& pass);
  /// For the optimizer; empty unless the method learns from every step. The pruner must outlive
  /// them.
  optim::GradientHooks gradient_hooks();
  /// The masks of earlier steps, of methods that wait; null: none are kept.
  const pruning::MaskHistory* history() const { return history_ ? &*history_ : nullptr; }
  /// Continues at `steps`, with the history that a checkpoint of this step holds.
  void resume(int64_t steps, const io::CheckpointReader& reader);
  /// Collective: compares the store's current masks over ranks, as `change` compares new ones.
  void compare(parallel::Communicator& comm) const;
  /// Sparsity of this store without borrowed parameters.
  Sparsity sparsity() const;
  /// Flags over store.parameters().
  const std::vector<bool>& prunable() const { return prunable_; }
  /// The target sparsity after `steps`.
  double target(int64_t steps) const;

 private:
  pruning::Result masks_for(int64_t steps, parallel::Communicator& comm, const GradientPass& pass);
  pruning::Settings settings_at(int64_t steps) const;
  /// Elements and matrices of all stages.
  struct Counts {
    int64_t size, kept, target;  ///< elements
    int64_t matrices;            ///< parts count apart (pruning::Candidate)
    int64_t sparser;             ///< matrices with fewer kept elements than the target

    bool is_dense() const { return kept == size; }
  };
  Counts counts_at(int64_t steps) const;
  std::optional<pruning::Result> masks_that_suffice(int64_t steps) const;
  bool moves_from_here(int64_t steps) const { return method_.moving() && steps == 0; }
  pruning::Result first_masks(int64_t steps);
  pruning::Result scored_masks(int64_t steps, parallel::Communicator& comm,
                               const GradientPass& pass);
  /// True: the masks are stable, or to_step is reached. Collective over the stages.
  bool stable(int64_t steps, const pruning::Result& result, Change& change);
  bool masks_change(int64_t steps) const;
  bool projects_at(int64_t steps) const;
  pruning::Result learned_masks(int64_t steps);
  void learn(int64_t step, double scale, GradientUse use);
  double norm(std::span<const std::vector<float>> arrays) const;
  void with_moved_values(std::span<const std::vector<float>> values,
                         std::span<const std::vector<float>> direction,
                         const std::function<void()>& passes);
  pruning::Result moved_masks(int64_t steps, parallel::Communicator& comm,
                              const GradientPass& pass);
  std::vector<int64_t> kept_after(int64_t steps, std::vector<std::string>& warnings);
  void compare_masks(parallel::Communicator& comm,
                     const std::function<uint64_t(size_t)>& digest) const;

  io::PruningConfig config_;
  uint64_t seed_;
  sparse::Store& store_;
  StoreScope scope_;
  std::vector<bool> prunable_;
  std::optional<pruning::GlobalSelection> global_selection_;  ///< with the other stages
  const pruning::Method& method_;
  ScoredSamples samples_;
  bool enabled_;
  pruning::PruningSchedule schedule_;
  pruning::MaskMoveSchedule moves_;              ///< of methods whose masks move
  pruning::LearningWindow window_;               ///< of methods that learn from every step
  std::optional<pruning::MaskHistory> history_;  ///< of methods that wait, until they prune
};

/// Runs `method` on the prunable parameters of a store; other masks stay. Returns masks of all
/// parameters in forward order.
pruning::Result compute_masks(sparse::Store& store, const std::vector<bool>& prunable,
                              const pruning::Settings& settings, const StoreScope& scope = {});
/// Flags over the parameters. Throws Failure for an exclude pattern that matches none.
std::vector<bool> prunable_of(std::span<const sparse::ParameterSpec> specs,
                              const io::PruningConfig& config);
std::vector<bool> prunable_of(const sparse::Store& store, const io::PruningConfig& config);

/// Global pruning over ranks of `comm` that hold different parameters, for example the stages of a
/// pipeline. `mine`: this rank's numbers among the `candidates` of all ranks. `comm` must outlive
/// the result.
pruning::GlobalSelection make_global_selection(parallel::Communicator& comm, size_t candidates,
                                               std::vector<size_t> mine);

/// A mask for measurements before the run has one, with about `kept` elements of a parameter of
/// this shape. Its structure is the method's: N:M groups (any `kept` below the full size gives
/// N:M), blocks, or else random single elements. Deterministic. O(size) time.
sparse::Mask example_mask(const io::PruningConfig& config, const sparse::ParameterSpec& spec,
                          int64_t kept);

}  // namespace espalier::train
