#pragma once
// Pruning over the stages of a pipeline: what its ranks exchange so that all parameters compete
// (pruning.h). The ranks of `comm` hold different parameters.
#include "parallel/transport/communicator.h"
#include "pruning/pruning.h"
#include "sparse/store/store.h"

namespace espalier::train {

/// Whose parameters a store holds.
struct StoreScope {
  std::vector<sparse::ParameterSpec> network{};  ///< all parameters, in forward order
  std::vector<size_t> numbers{};                 ///< of the store's parameters, in its order
  parallel::Communicator* stages = nullptr;      ///< the others are there; null: the store has all
};

/// Of the candidates that `prunable` marks among scope.network; scope.stages is set.
pruning::Competition make_competition(const StoreScope& scope, const std::vector<bool>& prunable);

/// `mine`: numbers of this rank's candidates among `candidates` of all ranks. `comm` must outlive
/// it.
pruning::Competition make_competition(parallel::Communicator& comm, size_t candidates,
                                      std::vector<size_t> mine);

}  // namespace espalier::train
