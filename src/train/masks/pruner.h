#pragma once
// Applies a pruning method to a store: when it is due, with the candidates that config and model
// allow, and the proof that all ranks got the same masks.
//
// Some methods need dense gradients: RigL those of elements that are not kept, SNIP those of several
// batches. Extra passes show them layer by layer (Store::set_gradient_probe), summed over all ranks.
// Each pass needs the fp32 gradient of one layer beside the arrays of a step, and a rank sends
// 2 (p - 1) / p of the dense gradient. Scores take 4 bytes a kept element of the host.
#include <functional>
#include <optional>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "pruning/registry.h"
#include "pruning/schedule.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// The place of a store in the network.
struct StoreScope {
  std::vector<sparse::ParameterSpec> network{};  ///< all parameters, in forward order
  std::vector<size_t> numbers{};                 ///< of the store's parameters, in its order
  parallel::Communicator* stages = nullptr;  ///< hold the other parameters; null: the store has all
};

/// Zeros / prunable elements, and counts, of a store under this config.
struct Sparsity {
  int64_t prunable = 0;
  int64_t prunable_kept = 0;
  double sparsity() const {
    return prunable == 0 ? 0.0
                         : 1.0 - static_cast<double>(prunable_kept) / static_cast<double>(prunable);
  }
};

/// What a change of masks did.
struct Change {
  std::vector<std::string> warnings;  ///< for the user
  int64_t grown = 0;                  ///< elements that were not kept before
};

class Pruner {
 public:
  /// Throws Failure for an exclude pattern that matches nothing, and for timings that cannot be.
  Pruner(const io::Config& config, sparse::Store& store, const StoreScope& scope = {});

  /// Whether masks change after `steps` optimizer steps (0: before the first one).
  bool due(int64_t steps) const;
  /// Computes and applies new masks. Throws Failure naming parameter and ranks when masks differ.
  /// `comm`: ranks that hold the same parameters.
  ///
  /// `pass(batch)` runs forward and backward on the first micro-batch of step `steps` + batch, on
  /// every rank its own. Methods that need gradients call it.
  using Pass = std::function<void(int64_t batch)>;
  Change change(int64_t steps, parallel::Communicator& comm, const Pass& pass);
  /// Collective: the masks that the store has now, as `change` compares new ones.
  void compare(parallel::Communicator& comm) const;
  /// Of this store, borrowed parameters not counted.
  Sparsity sparsity() const;
  /// Flags over store.parameters().
  const std::vector<bool>& prunable() const { return prunable_; }
  /// The sparsity that is reached after `steps`.
  double target(int64_t steps) const;

 private:
  pruning::Result masks_for(int64_t steps, parallel::Communicator& comm, const Pass& pass);
  pruning::Result first_masks(int64_t steps);
  pruning::Result scored_masks(int64_t steps, parallel::Communicator& comm, const Pass& pass);
  pruning::Result moved_masks(int64_t steps, parallel::Communicator& comm, const Pass& pass);
  std::vector<int64_t> kept_after(int64_t steps, std::vector<std::string>& warnings);
  void for_each_gradient(const std::function<bool(size_t)>& wanted, sparse::Store::Probed probed,
                         parallel::Communicator& comm, const std::function<void()>& pass,
                         const std::function<void(size_t, std::span<const float>)>& use);
  void compare_masks(parallel::Communicator& comm,
                     const std::function<uint64_t(size_t)>& digest) const;

  io::PruningConfig config_;
  uint64_t seed_;
  sparse::Store& store_;
  std::vector<bool> prunable_;
  std::optional<pruning::Competition> competition_;  ///< with other stages
  const pruning::Method& method_;
  bool enabled_;
  pruning::Timing timing_;
  pruning::Moves moves_;  ///< of methods whose masks move
};

/// Runs `method` on the prunable parameters of a store; masks of the others stay. All parameters in
/// forward order.
pruning::Result compute_masks(sparse::Store& store, const std::vector<bool>& prunable,
                              const pruning::Settings& settings);
/// Flags over the parameters. Throws Failure for an exclude pattern that matches none.
std::vector<bool> prunable_of(std::span<const sparse::ParameterSpec> specs,
                              const io::PruningConfig& config);
std::vector<bool> prunable_of(const sparse::Store& store, const io::PruningConfig& config);

/// Global pruning over ranks of `comm` that hold different parameters, for example the stages of a
/// pipeline. `mine`: numbers of this rank's candidates among `candidates` of all ranks. `comm` must outlive
/// it.
pruning::Competition make_competition(parallel::Communicator& comm, size_t candidates,
                                      std::vector<size_t> mine);

/// A mask to measure with before the run has one: keeps about `kept` elements of a parameter of this
/// shape, of the kind that the method makes (groups of nm, whatever `kept` is unless it is all;
/// blocks; else random single elements). Deterministic. O(size) time.
sparse::Mask example_mask(const io::PruningConfig& config, const sparse::ParameterSpec& spec,
                          int64_t kept);

}  // namespace espalier::train
