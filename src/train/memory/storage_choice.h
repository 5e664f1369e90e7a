#pragma once
// storage = "auto": times every storage on the real shapes and densities, and selects the fastest
// that fits. Of storages within 5 % of the fastest, the noise of timings, the one with the fewest
// bytes is the best.
//
// A group has one shape, one kind of mask (blocks or not), densities within about a tenth of each
// other, and one use: products with so many rows, or a convolution of one window. It is timed once,
// on random values and its first parameter's mask (unpruned: an example of the method): forward,
// backward-input and backward-weight of one micro-batch, the least of a few repeats. A convolution
// is timed as a whole, because its algorithm depends on the storage (model/layers/convolution.h). A
// trial holds one parameter, or all groups of one convolution, and the images of a micro-batch, in
// addition to the run's state.
//
// On a CPU, a storage whose first run takes more than 0.05 s, and more than twice the shortest
// first run of the group, is not run again. Where a product has more than 2^31 multiplications,
// first runs have an eighth of the rows, and the times of storages that are not run again are
// scaled. On a device, storages that keep forms are not timed: they keep none there.
//
// Under a memory budget, groups move to smaller storages until the total fits; the move that loses
// the least time per saved byte comes first. Total: state of all parameters, and the largest
// scratch. For each size that the scratch may have the groups are fitted; the fastest result
// counts. The plan of the run with this choice (RunPlan::with_storages) then confirms it, or the
// total shrinks: changes of masks need memory, too.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "sparse/store/store.h"

namespace espalier::train {

struct StorageTiming {
  sparse::Storage storage = sparse::Storage::dense;
  double seconds = 0;        ///< of forward, backward-input and backward-weight, one micro-batch
  double slowest_round = 0;  ///< `seconds` is that of the fastest; 0: there was no second run
  size_t bytes = 0;          ///< of one parameter: weight, gradient, optimizer state, index
  /// Workspace beyond that of storage sparse, in the product where the difference is largest, as
  /// dry kernels bound it; 0 if no product needs more.
  size_t scratch = 0;
};

struct StorageGroup {
  Shape shape;
  int64_t rows = 1;                         ///< of a product; of a convolution: images
  std::optional<kernels::Window> window{};  ///< of a convolution
  int64_t groups = 1;                       ///< of a convolution: matrices of this shape
  double density = 1;
  bool blocks = false;                 ///< masks consist of blocks, now and later
  std::vector<size_t> parameters;      ///< numbers in forward order
  std::vector<StorageTiming> timings;  ///< in the order of sparse::storages()
  size_t chosen = 0;                   ///< of `timings`
  bool limited = false;                ///< a faster one is the best, but did not fit the budget
};

struct StorageChoiceInput {
  const io::Config& config;
  sparse::Store& store;
  const std::vector<bool>& prunable;  ///< flags over store.parameters()
  double density = 1;                 ///< reached by pruning; pruned parameters use their own
  int64_t samples = 1;                ///< of a micro-batch
  int64_t rows = 1;                   ///< predictions of a micro-batch
};

/// Whether any storage in the config is "auto".
bool has_auto_storage(const io::Config& config, const sparse::Store& store);

/// Bytes of the largest trial of `time_storages` for a dry store, which runs on dry kernels.
size_t plan_timings(const StorageChoiceInput& input, int threads, const kernels::Kernels& kernels);
/// Times the groups whose storage is "auto". A storage for which this rank's memory is short has no
/// timing.
std::vector<StorageGroup> time_storages(const StorageChoiceInput& input, int threads,
                                        const kernels::Kernels& kernels);
/// Collective. Drops the timings that another rank does not have: all ranks choose from one list.
void keep_common_timings(std::vector<StorageGroup>& groups, parallel::Communicator& comm);
/// Bytes if every group has the storage that runs are planned with (store_options.cpp): sparse.
size_t planned_bytes(const std::vector<StorageGroup>& groups);
/// Sets `chosen`. `budget`: bytes for these groups. Throws Failure if even the smallest storages do
/// not fit.
void choose_storages(std::vector<StorageGroup>& groups, std::optional<size_t> budget);
/// Collective. Sets `chosen` by the timings of rank 0, so that `needed` (bytes of a rank with the
/// chosen storages) is at most `limit` on every rank. Begins with the best storages within
/// `budget` (bytes for these groups) and lowers `budget` until they fit. If none fit: the storages
/// that runs are planned with.
void choose_storages_that_fit(std::vector<StorageGroup>& groups, size_t budget, size_t limit,
                              const std::function<size_t()>& needed, parallel::Communicator& comm);
/// Collective: all ranks take the choice of rank 0.
void share_choice(std::vector<StorageGroup>& groups, parallel::Communicator& comm);

/// The choices by parameter, for checkpoints, and a choice that a checkpoint holds.
std::map<std::string, std::string> storages_chosen(const std::vector<StorageGroup>& groups,
                                                   const sparse::Store& store);
void set_storages(const std::map<std::string, std::string>& chosen, sparse::Store& store);

/// A table for the user: shape, density, parameters, ms and bytes per element of the dense shape
/// (B/p) of each storage, the choice, and
/// where the budget excluded the fastest. Below it, the shapes for which products with
/// single-element sparsity are slower than dense ones: on a GPU this is usual at 90 % sparsity
/// (SAMO, figure 1).
std::string storage_table(const std::vector<StorageGroup>& groups);

}  // namespace espalier::train
