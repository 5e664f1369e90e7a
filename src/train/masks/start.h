#pragma once
// Initial masks of a run. They are made one at a time before the store, which is then laid out for
// the kept elements at once: dense state never exists.
//
//   --resume, --init   the masks of the file
//   [pruning] before   methods random, file, rigl, set and nm; magnitude and block in scope "layer".
//   the first step     The pruning before the first step is then done.
//   else               all elements are kept
//
// Initial values are a pure function of (seed, name, element), so methods that read values compute
// those of one parameter at a time. Magnitude and block in global scope would need all at once: such
// runs start dense. Memory: the mask of one parameter, a bit an element, and its fp32 values if they
// are read; masks of all parameters for random in global scope, rigl and set.
#include <filesystem>
#include <optional>

#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/train/masks/mask_files.h"

namespace espalier::train {

/// A file of weights to start from; at most one is set.
struct StartFiles {
  std::optional<std::filesystem::path> resume;
  std::string init{};
};

struct Start {
  MaskOf masks;               ///< for StoreOptions::start; empty: all elements are kept
  std::vector<int64_t> kept;  ///< elements of each parameter (global scope: about as many)
  bool pruned = false;        ///< the pruning before the first step is done
};

/// `specs` of the network in forward order. Throws Failure if a file does not fit the network. Up to
/// `threads` threads draw random masks of single parameters, as many masks ahead.
Start start_of(const io::Config& config, const std::vector<sparse::ParameterSpec>& specs,
               const StartFiles& files = {}, int threads = 1);

/// The start of some parameters: `numbers` in forward order, ascending.
Start start_of_part(const Start& whole, std::vector<size_t> numbers);

/// The steps after which masks change, ascending; 0: before the first step.
std::vector<int64_t> pruning_steps(const io::PruningConfig& config);
/// Kept elements of each parameter after pruning at `step`: in global scope an even share, and never
/// more than `now`.
std::vector<int64_t> kept_after(const io::PruningConfig& config,
                                const std::vector<sparse::ParameterSpec>& specs, int64_t step,
                                std::vector<int64_t> now);

}  // namespace espalier::train
