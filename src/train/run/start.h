#pragma once
// What a run starts with. Masks come first, one at a time, so that a store that starts pruned is
// laid out for its kept elements at once and dense state never exists:
//
//   --resume, --init         the masks of the file
//   [pruning] before the     masks of methods random, file, rigl, set and nm, and in scope "layer" of
//   first step               magnitude and block; the pruning before the first step is done then
//   else                     all is kept
//
// Initial values are a pure function of (seed, name, element), so those methods that read them draw
// the values of one parameter, and let them go. In global scope magnitude and block would need all
// at once: such runs start dense. Memory: one mask, a bit an element of one parameter, and its fp32
// values where they are read; with random in global scope, rigl and set the masks of all
// parameters.
#include <filesystem>
#include <optional>

#include "io/config/config.h"
#include "sparse/store/store.h"
#include "src/train/run/snapshot.h"

namespace espalier::train {

/// A file of weights that the run starts from; at most one is given.
struct StartFiles {
  std::optional<std::filesystem::path> resume;
  std::string init{};
};

struct Start {
  MaskOf masks;               ///< for StoreOptions::start; empty: all is kept
  std::vector<int64_t> kept;  ///< elements of each parameter (global scope: about as many)
  bool pruned = false;        ///< by the config's method: nothing is due before the first step
};

/// `specs` of the network in forward order. Throws Failure when a file does not fit the network.
/// Random masks of single parameters are drawn by up to `threads` threads, as many masks ahead.
Start start_of(const io::Config& config, const std::vector<sparse::ParameterSpec>& specs,
               const StartFiles& files = {}, int threads = 1);

/// Of some parameters alone: `numbers` in forward order, ascending.
Start start_of_part(const Start& whole, std::vector<size_t> numbers);

/// The steps after which masks change, ascending; 0: before the first step.
std::vector<int64_t> pruning_steps(const io::PruningConfig& config);
/// How many elements each parameter keeps after pruning at `step`: shared out evenly in global
/// scope, and never more than `now`.
std::vector<int64_t> kept_after(const io::PruningConfig& config,
                                const std::vector<sparse::ParameterSpec>& specs, int64_t step,
                                std::vector<int64_t> now);

}  // namespace espalier::train
