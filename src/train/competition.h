#pragma once
// Pruning over the stages of a pipeline: what its ranks exchange so that all parameters compete
// (pruning.h). The ranks of `comm` hold different parameters.
#include "parallel/communicator.h"
#include "pruning/pruning.h"

namespace espalier::train {

/// `mine`: numbers of this rank's candidates among `candidates` of all ranks. `comm` must outlive it.
pruning::Competition make_competition(parallel::Communicator& comm, size_t candidates,
                                      std::vector<size_t> mine);

}  // namespace espalier::train
