#pragma once
// Codec "powersgd:RANK" of a stage: selects the gradients that are reduced as two thin factors
// (parallel/reduction/powersgd/factors.h). RANK is 4 if omitted.
//
// Factored: matrices with full masks. Uncompressed: vectors, pruned matrices, matrices whose
// factors have no fewer bytes than half of their elements in fp32, parameters below
// `codec_min_size` (unless a pattern names them), tied embeddings held by two stages, and all
// parameters in the first `powersgd_warmup` steps. powersgd always keeps error feedback;
// `error_feedback` is about other codecs. The feedback of a parameter that is sent uncompressed is
// added to it.
#include <vector>

#include "io/config/config.h"
#include "parallel/reduction/powersgd/factors.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// Number of columns of a parameter's factors; 0: the parameter is not factored.
int64_t low_rank_of(const io::Config& config, const sparse::Parameter& parameter);

/// Approximate host bytes of powersgd: factors, and copies of gradients that are not factored.
/// memory/dry_run.cpp plans its device memory.
size_t low_rank_bytes(const io::Config& config, const sparse::Store& store);
/// Upper bound of the factors that are summed at once, in bytes.
size_t summed_factor_bytes(const io::Config& config, const sparse::Store& store);

/// Sets the matrices that `low_rank` reduces in this step: none during warm-up.
void set_low_rank(parallel::LowRank& low_rank, const io::Config& config, Stage& stage,
                  int64_t step);

/// Throws Failure if a pattern selects powersgd for a parameter that is pruned, or will be:
/// `prunable` are flags over the store's parameters.
void check_low_rank(const io::Config& config, const sparse::Store& store,
                    const std::vector<bool>& prunable);

}  // namespace espalier::train
