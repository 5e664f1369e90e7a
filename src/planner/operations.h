#pragma once
// The operations of a network's layers in a pass of one micro-batch, and of their update, counted
// without computing: the layers of a run execute on the "dry" table, with the kept elements that
// the config's pruning leaves. So storages, densities, recomputation and fused operations are those
// of the run.
//
// Cost: one dry pass of each kind of layer; layers with equal parameters have equal operations.
#include <vector>

#include "io/config/config.h"
#include "src/kernels/operation_times.h"
#include "src/train/memory/budget.h"
#include "src/train/stage/part.h"

namespace espalier::planner {

using Operations = std::vector<kernels::OperationRow>;  ///< `seconds` unused

struct LayerOperations {
  Operations forward;          ///< of training
  Operations backward_input;   ///< all backward work except backward_weight
  Operations backward_weight;  ///< products of weight gradients, if the schedule defers them
  Operations update;
  kernels::OperationRow other;  ///< host work and index decoding of a pass (other_of_block)
  int64_t size = 0, kept = 0;   ///< parameters
  /// Of the tensor to the next layer, without a codec; 0 for the last layer.
  int64_t output_values = 0;
  size_t output_bytes = 0;

  // Bytes, for estimates of a stage's memory (StepPredictor::estimated_memory):
  train::MemoryByKind state{};  ///< of its parameters
  size_t tape_alone = 0;        ///< of a micro-batch, if the layer is a part of its own
  size_t tape_added = 0;        ///< to a part that ends in such a layer; 0 if none ever does
  size_t deferred = 0;          ///< kept by a deferred backward
};

/// The operation "other" stands for the time of a block's pass outside of its operations: the
/// host's work, and the decoding of the index of `kept` elements. It is measured like an operation.
kernels::OperationRow other_of_block(int64_t kept);

/// Of layers in forward order, for `samples` samples in a micro-batch. `kept`: elements of each
/// parameter of the network. `deferred`: the schedule defers weight gradients, whose operands are
/// then copied.
std::vector<LayerOperations> count_operations(const io::Config& config,
                                              const train::ProblemShape& problem,
                                              const std::vector<int64_t>& kept, int64_t samples,
                                              model::Recompute recompute, bool deferred);

}  // namespace espalier::planner
