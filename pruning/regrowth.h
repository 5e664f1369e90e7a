#pragma once
// Masks that grow at the end of a run: sparse first, dense last (pruning.dense_from_step).
//
//   "STEP[:SPARSITY],…"   after STEP steps (below 1: after that share of train.steps) no prunable
//                         parameter is sparser than SPARSITY, by default 0
//
// A parameter with z of n elements (or blocks) pruned gets max(0, z - round(SPARSITY n)) of them
// back, drawn at random by (seed, name, position): the same on every grid. Kept elements stay.
// Blocks come back whole if the mask consists of blocks.
// Weights that come back are 0, so the network computes the same function until the next update
// (sparse/store/store.h has their optimizer state). No method changes masks afterwards.
// Source of the order, with fixed masks: Monarch's reverse sparsification (arXiv 2204.00595).
#include <memory>
#include <span>
#include <vector>

#include "io/config/config.h"
#include "pruning/work.h"

namespace espalier::pruning {

struct Regrowth {
  int64_t step = 0;
  double sparsity = 0;
};

/// Of a run of `steps`, ascending; empty: masks never grow back. Throws Failure for a text of
/// another form.
std::vector<Regrowth> regrowths_of(const io::PruningConfig& config, int64_t steps);
/// Throws Failure unless steps ascend within the run, after the last pruning (-1: there is none),
/// and sparsity falls.
void check_regrowths(const io::PruningConfig& config, int64_t steps, int64_t last_pruning);
/// The last step whose masks are those of the method.
int64_t last_step_before_regrowth(const io::PruningConfig& config, int64_t steps);

/// Elements that a parameter of `size` elements keeps after a regrowth; of blocks about so many.
int64_t kept_after(const Regrowth& regrowth, int64_t size, int64_t kept);
/// Heap of a regrowth beside masks, bytes.
size_t regrowth_bytes(const Regrowth& regrowth, std::span<const sparse::Parameter> parameters);

/// The method's work (null: there is none), then regrowths.
std::unique_ptr<Work> with_regrowth(std::unique_ptr<Work> method, const RunSettings& settings,
                                    const Weights& weights);

}  // namespace espalier::pruning
