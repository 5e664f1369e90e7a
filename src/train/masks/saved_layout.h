#pragma once
// Sizes of a parameter's datasets in a checkpoint: of a save, and of its plan.
#include <span>
#include <vector>

#include "sparse/store/store.h"

namespace espalier::train {

struct SavedLayout {
  int64_t parameter = 0;  ///< number in the network
  int64_t nnz = 0, index_bytes = 0, moments = 0, pruning = 0;
  int32_t encoding = 0, dtype = 0;
  int64_t history = 0;  ///< 1: with the masks of earlier steps

  size_t bytes() const;
};
/// Without number and index.
SavedLayout saved_layout(const sparse::Store& store, const sparse::Parameter& parameter,
                         bool history);

/// Replicas share the work: the one that writes parameter `number` of the network.
inline int writing_replica(size_t number, int replicas) {
  return static_cast<int>(number) % replicas;
}

/// Bytes that each of `replicas` writes of a store, with its own error feedback. An index counts as
/// that of a random mask. `numbers`: of the parameters in the network; empty: all, in order.
/// `history`: prunable parameters have the masks of earlier steps.
std::vector<size_t> saved_bytes(const sparse::Store& store, std::span<const size_t> numbers,
                                int replicas, bool history);

}  // namespace espalier::train
