#pragma once
// Changes the masks of a run: due? → the method proposes (pruning/work.h) → all ranks agree →
// apply.
//
// Dense gradients, which some methods read, come from extra passes, layer by layer
// (Store::set_gradient_probe), and are summed exactly over samples and ranks (sample_gradients.h).
// Cost of a pass: the fp32 gradient of one layer in addition to the arrays of a step.
#include <memory>
#include <optional>

#include "io/checkpoint/checkpoint.h"
#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "pruning/work.h"
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
  bool masks = true;                 ///< false: they stay as they are
  std::vector<std::string> notes;    ///< for the user
  int64_t grown = 0;                 ///< elements that were pruned before
  std::optional<double> distance{};  ///< pruning::Proposal::distance
};

class Pruner {
 public:
  /// Throws Failure for an exclude pattern without a match, and for invalid schedules.
  Pruner(const io::Config& config, sparse::Store& store, const StoreScope& scope = {});
  Pruner(const Pruner&) = delete;
  Pruner& operator=(const Pruner&) = delete;

  /// Whether `change` is to be called after `steps` optimizer steps (0: before the first one).
  bool due(int64_t steps) const { return work_ && work_->due(steps); }
  /// Computes and applies new masks. Throws Failure naming parameter and ranks when masks differ.
  /// `comm`: ranks that hold the same parameters.
  ///
  /// `pass`: of samples of step `steps` + batch. Methods that need gradients call it.
  Change change(int64_t steps, parallel::Communicator& comm, const GradientPass& pass);
  /// For the optimizer; empty unless the method learns from every step. The pruner must outlive
  /// them.
  optim::GradientHooks gradient_hooks();
  /// The masks of earlier steps, of methods that wait; null: none are kept.
  const pruning::MaskHistory* history() const { return work_ ? work_->history() : nullptr; }
  /// Continues at `steps`, with the history that a checkpoint of this step holds.
  void resume(int64_t steps, const io::CheckpointReader& reader);
  /// Collective: compares the store's current masks over ranks, as `change` compares new ones.
  void compare(parallel::Communicator& comm) const;
  /// Sparsity of this store without borrowed parameters.
  Sparsity sparsity() const;
  /// Flags over store.parameters().
  const std::vector<bool>& prunable() const { return prunable_; }
  /// The target sparsity after `steps`.
  double target(int64_t steps) const { return work_ ? work_->target(steps) : 0.0; }

 private:
  using Digest = std::function<uint64_t(size_t p)>;
  void compare_masks(parallel::Communicator& comm, const Digest& digest) const;

  sparse::Store& store_;
  parallel::Communicator* stages_;  ///< null: there are none
  std::vector<bool> prunable_;
  std::optional<pruning::GlobalSelection> global_selection_;  ///< with the other stages
  ScoredSamples samples_;
  std::unique_ptr<pruning::Work> work_;  ///< null: nothing is pruned
};

/// Flags over the parameters. Throws Failure for an exclude pattern that matches none.
std::vector<bool> prunable_of(std::span<const sparse::ParameterSpec> specs,
                              const io::PruningConfig& config);
std::vector<bool> prunable_of(const sparse::Store& store, const io::PruningConfig& config);

/// Global pruning over ranks of `comm` that hold different parameters, for example the stages of a
/// pipeline. `mine`: this rank's numbers among the `candidates` of all ranks. `comm` must outlive
/// the result.
pruning::GlobalSelection make_global_selection(parallel::Communicator& comm, size_t candidates,
                                               std::vector<size_t> mine);

}  // namespace espalier::train
