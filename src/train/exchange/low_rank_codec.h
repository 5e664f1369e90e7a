#pragma once
// Codec "powersgd:RANK" of a stage: which gradients are reduced as two thin factors
// (parallel/reduction/powersgd/factors.h).
//
// It is for matrices of full masks; without a number RANK is 4. Vectors, matrices whose factors
// have no fewer bytes than half of their elements in fp32, parameters below `codec_min_size` (where
// only the default speaks), pruned ones, and tied embeddings that two stages hold travel as they
// are; so do all for the first `powersgd_warmup` steps. Errors are kept whatever `error_feedback`
// says, which is about other codecs; what of them belongs to a parameter that travels as it is goes
// along with it.
#include <vector>

#include "io/config/config.h"
#include "parallel/reduction/powersgd/factors.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// Whether powersgd is the codec of any name.
bool uses_low_rank(const io::Config& config);

/// The columns of a parameter's factors; 0: it has none.
int64_t low_rank_of(const io::Config& config, const sparse::Parameter& parameter);

/// What powersgd takes of the host's memory beside `store`, about: factors, and copies of what is
/// not factored. From device to device: planned_sums.h.
size_t low_rank_bytes(const io::Config& config, const sparse::Store& store);

/// Sets what `low_rank` reduces in this step: the matrices that the masks leave, none in the
/// warm-up.
void set_low_rank(parallel::LowRank& low_rank, const io::Config& config, Stage& stage,
                  int64_t step);

/// Throws Failure when powersgd is asked for by a pattern and the parameter is pruned, or will be:
/// `prunable` are flags over the store's parameters.
void check_low_rank(const io::Config& config, const sparse::Store& store,
                    const std::vector<bool>& prunable);

}  // namespace espalier::train
