#pragma once
// storage = "auto": times every storage on the real shapes and densities, and takes the fastest
// that fits. One group of parameters of the same shape and density is timed once, on random values
// and a mask as the pruning method would make it: a forward, a backward-input and a backward-weight
// of one micro-batch, the median of a few. Under a memory budget groups move to smaller storages,
// the one that loses least time a byte first, until the total fits: the state of all parameters,
// and the scratch of the one that takes most. A trial holds one parameter beside the run's own
// state.
#include <optional>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "sparse/store/store.h"

namespace espalier::train {

struct StorageTiming {
  sparse::Storage storage = sparse::Storage::dense;
  double seconds = 0;  ///< of the three verbs, one micro-batch
  size_t bytes = 0;    ///< of one parameter: weight, gradient, optimizer state, index
  size_t scratch = 0;  ///< that the verbs take, as dry kernels bound it
};

struct StorageGroup {
  Shape shape;
  double density = 1;
  bool blocks = false;                 ///< masks are made of blocks, and will be
  std::vector<size_t> parameters;      ///< numbers, forward order
  std::vector<StorageTiming> timings;  ///< in the order of sparse::storages()
  size_t chosen = 0;                   ///< of `timings`
  bool limited = false;                ///< the fastest did not fit the budget
};

struct StorageQuestion {
  const io::Config& config;
  sparse::Store& store;
  const std::vector<bool>& prunable;  ///< flags over store.parameters()
  double density = 1;  ///< that pruning will reach; parameters pruned already have theirs
  int64_t rows = 1;    ///< of a micro-batch
};

/// Whether the config leaves a storage to us at all.
bool has_auto_storage(const io::Config& config, const sparse::Store& store);

/// Times the groups that config leaves to "auto".
std::vector<StorageGroup> time_storages(const StorageQuestion& question, int threads,
                                        const kernels::Kernels& kernels);
/// Bytes when every group has the storage that runs are planned for (budget.h): sparse.
size_t planned_bytes(const std::vector<StorageGroup>& groups);
/// Fills in `chosen`; `budget` in bytes of these groups. Throws Failure when not even the smallest
/// storages fit it.
void choose_storages(std::vector<StorageGroup>& groups, std::optional<size_t> budget);
/// Collective: the choice of rank 0 for every rank.
void agree_on_storages(std::vector<StorageGroup>& groups, parallel::Communicator& comm);
void apply_storages(const std::vector<StorageGroup>& groups, sparse::Store& store);

/// A table for people: shape, density, parameters, ms and bytes of each storage, the choice, and
/// where the budget forbade the fastest. Below it the shapes whose products of single elements lose
/// to dense ones: on a GPU that is the rule at 90 % (SAMO, figure 1).
std::string storage_table(const std::vector<StorageGroup>& groups);

}  // namespace espalier::train
