#pragma once
// Tensor parallelism as Megatron-LM has it (Shoeybi et al. 2019; Korthikanti et al. 2022), so that
// predictions can be compared with published runs. Runs of Espalier have none.
//
// Matrices, heads and the vocabulary are divided among `ways` devices of one innermost unit, which
// act as one rank of the plan:
//
//   operations   time of the whole ÷ ways; norms are repeated by all, unless `sequence`
//   block        2 all-reduces of its activations forward and 2 backward, 2 more if the whole block
//                is recomputed. With `sequence` each is a reduce-scatter and an all-gather: as long
//   embedding    1 all-reduce forward; head: 1 backward
//   messages     each device sends its part to the next stage
//   gradients    each device sums its part with the replicas
//
// Memory: of the `ways` devices together; what they repeat counts once.
#include "src/planner/machine.h"
#include "src/planner/operations.h"

namespace espalier::planner {

struct TensorSplit {
  int ways = 1;
  bool sequence = false;  ///< norms are divided along the sequence, too
};

/// Of each rank of a plan, its innermost unit of the machine.
std::vector<int> machines_of(int ranks, const Machine& machine, const TensorSplit& split);

/// Seconds of one call on each device.
double seconds_of(const Machine& machine, const TensorSplit& split,
                  const kernels::OperationRow& operation, DType dtype);

/// Exchanges of a layer in a micro-batch.
struct TensorExchanges {
  double forward = 0, backward = 0;  ///< seconds
};
/// `bytes`: of the activations that the layer reads or writes. `recomputed`: the whole layer.
TensorExchanges exchanges_of(const Machine& machine, const TensorSplit& split,
                             const LayerOperations& layer, double bytes, bool recomputed);

}  // namespace espalier::planner
