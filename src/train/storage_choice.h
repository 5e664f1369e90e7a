#pragma once
// storage = "auto": times every storage on the real shapes and densities, and takes the fastest that
// fits. One group of parameters of the same shape and density is timed once, on random values and a
// mask as the pruning method would make it: a forward, a backward-input and a backward-weight of one
// micro-batch, the median of a few. When a rank's memory budget is given, groups move to smaller
// storages, the one that loses least time a byte first, until the total fits.
#include <optional>
#include <string>
#include <vector>

#include "io/config.h"
#include "parallel/communicator.h"
#include "sparse/store.h"

namespace espalier::train {

struct StorageTiming {
  sparse::Storage storage = sparse::Storage::dense;
  double seconds = 0;  ///< of the three verbs, one micro-batch
  size_t bytes = 0;    ///< of one parameter: weight, gradient, optimizer state, index
};

struct StorageGroup {
  Shape shape;
  double density = 1;
  std::vector<size_t> parameters;      ///< numbers, forward order
  std::vector<StorageTiming> timings;  ///< in the order of sparse::Storage
  size_t chosen = 0;                   ///< of `timings`
};

struct StorageQuestion {
  const io::Config& config;
  sparse::Store& store;
  const std::vector<bool>& prunable;  ///< flags over store.parameters()
  double density = 1;  ///< that pruning will reach; parameters pruned already have theirs
  int64_t rows = 1;    ///< of a micro-batch
  /// Bytes that may be used by the model state of this rank.
  std::optional<size_t> budget;
};

/// Whether the config leaves a storage to us at all.
bool has_auto_storage(const io::Config& config, const sparse::Store& store);

/// Times the groups that config leaves to "auto".
std::vector<StorageGroup> time_storages(const StorageQuestion& question, int threads,
                                        const kernels::Kernels& kernels);
/// Fills in `chosen`. Throws Failure when not even the smallest storages fit the budget.
void choose_storages(std::vector<StorageGroup>& groups, std::optional<size_t> budget);
/// Collective: the choice of rank 0 for every rank.
void agree_on_storages(std::vector<StorageGroup>& groups, parallel::Communicator& comm);
void apply_storages(const std::vector<StorageGroup>& groups, sparse::Store& store);

/// A table for people: shape, density, parameters, ms and bytes of each storage, the choice.
std::string storage_table(const std::vector<StorageGroup>& groups);

}  // namespace espalier::train
