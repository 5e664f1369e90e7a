#pragma once
// Initial masks of a run. They are made one at a time before the store exists; the store is then
// laid out for the kept elements, so dense state is never allocated.
//
//   --resume, --init   the masks of the file
//   [pruning] before   methods random, file, rigl, set and nm; magnitude and block in scope
//   the first step     "layer". The pruning before the first step is then done.
//   else               all elements are kept
//
// Initial values are a pure function of (seed, name, element), so methods that read values compute
// those of one parameter at a time. Magnitude and block in global scope would need all values at
// once; such runs start dense.
//
// Memory:
// - the mask of one parameter, one bit per element;
// - its fp32 values, if the method reads them;
// - for random in global scope, rigl and set: the masks of all parameters.
#include <filesystem>
#include <optional>

#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/train/masks/mask_files.h"

namespace espalier::train {

/// A file of weights to start from; at most one is set.
struct WeightSource {
  std::optional<std::filesystem::path> resume;
  std::string init{};
};

struct InitialMasks {
  MaskOf masks;               ///< for StoreOptions::start; empty: all elements are kept
  std::vector<int64_t> kept;  ///< elements of each parameter; in global scope approximate
  bool pruned = false;        ///< the pruning before the first step is done
  bool sparse = false;        ///< some elements are pruned: by it, or in the file of weights
};

/// `specs`: of the network, in forward order. Up to `threads` threads draw random masks of single
/// parameters ahead of use, one mask per thread. Throws Failure if a file does not fit the network.
InitialMasks initial_masks(const io::Config& config,
                           const std::vector<sparse::ParameterSpec>& specs,
                           const WeightSource& files = {}, int threads = 1);

/// The masks of the parameters `numbers` (forward order, ascending).
InitialMasks masks_of_part(const InitialMasks& whole, std::vector<size_t> numbers);

/// pruning::kept_after for a network; reads the counts of pruning.file.
std::vector<int64_t> kept_after(const io::PruningConfig& config,
                                const std::vector<sparse::ParameterSpec>& specs, int64_t step,
                                std::vector<int64_t> now);

}  // namespace espalier::train
