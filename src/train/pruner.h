#pragma once
// Applies a pruning method to a store: when it is due, with the candidates that config and model
// allow, and the proof that all ranks got the same masks.
#include <functional>

#include "io/config.h"
#include "parallel/communicator.h"
#include "pruning/pruning.h"
#include "pruning/schedule.h"
#include "sparse/store.h"

namespace espalier::train {

/// Zeros / prunable elements, and counts, of a store under this config.
struct Sparsity {
  int64_t prunable = 0;
  int64_t prunable_kept = 0;
  double sparsity() const {
    return prunable == 0 ? 0.0
                         : 1.0 - static_cast<double>(prunable_kept) / static_cast<double>(prunable);
  }
};

class Pruner {
 public:
  /// Throws Failure for an exclude pattern that matches nothing, and for timings that cannot be.
  Pruner(const io::Config& config, sparse::Store& store);

  /// Whether masks change after `steps` optimizer steps (0: before the first one).
  bool due(int64_t steps) const;
  /// Computes and applies new masks. Throws Failure naming parameter and ranks when masks differ.
  /// Returns warnings for the user.
  std::vector<std::string> prune(int64_t steps, parallel::Communicator& comm);
  /// Collective: the masks that the store has now, as `prune` compares new ones.
  void compare(parallel::Communicator& comm) const;
  Sparsity sparsity() const;
  /// Flags over store.parameters().
  const std::vector<bool>& prunable() const { return prunable_; }
  /// The sparsity that is reached after `steps`.
  double target(int64_t steps) const;

 private:
  pruning::Result masks_for(int64_t steps);
  void compare_masks(parallel::Communicator& comm,
                     const std::function<uint64_t(size_t)>& digest) const;

  io::PruningConfig config_;
  uint64_t seed_;
  sparse::Store& store_;
  std::vector<bool> prunable_;
  bool enabled_;
  pruning::Timing timing_;
};

/// Runs `method` on the prunable parameters of a store; masks of the others stay. All parameters in
/// forward order.
pruning::Result compute_masks(sparse::Store& store, const std::vector<bool>& prunable,
                              const pruning::Settings& settings);
pruning::Settings settings_of(const io::PruningConfig& config, uint64_t seed);
pruning::Timing timing_of(const io::PruningConfig& config);
/// Flags over the parameters. Throws Failure for an exclude pattern that matches none.
std::vector<bool> prunable_of(std::span<const sparse::ParameterSpec> specs,
                              const io::PruningConfig& config);
std::vector<bool> prunable_of(const sparse::Store& store, const io::PruningConfig& config);

}  // namespace espalier::train
