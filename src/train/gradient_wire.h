#pragma once
// How the gradient of a stage travels between its replicas: which codec each parameter gets, and
// the rank's error feedback.
//
// A parameter's codec is what `parallel.codec` says of its name. Where only the default speaks,
// biases, norms, and parameters of fewer than `codec_min_size` kept elements are sent as they are;
// so are tied embeddings that two stages hold, whose sums must be the same on both.
//
// "powersgd:RANK" is for matrices of full masks (parallel/low_rank.h; without a number RANK is 4).
// Vectors, matrices whose factors have no fewer bytes than half of their elements in fp32, and
// parameters that are pruned travel as they are; so do all for the first `powersgd_warmup` steps.
// It keeps errors, whatever `error_feedback` says.
#include <vector>

#include "io/config.h"
#include "parallel/low_rank.h"
#include "parallel/wire.h"
#include "src/train/stage.h"

namespace espalier::train {

/// The codec of a parameter of `kept` elements; gradients have type `dtype`.
kernels::WireFormat gradient_format(const io::Config& config, const sparse::ParameterSpec& spec,
                                    int64_t kept, DType dtype);

/// Of the store's flat gradient, in its order.
std::vector<parallel::WireSegment> gradient_segments(const io::Config& config, Stage& stage);

/// Whether gradients lose anything on the way.
bool loses(const io::Config& config);

/// Whether powersgd is the codec of any name.
bool uses_low_rank(const io::Config& config);

/// The columns of a parameter's factors; 0: it has none.
int64_t low_rank_of(const io::Config& config, const sparse::Parameter& parameter);

/// What powersgd takes of memory beside `store`, about: factors, and copies of what is not
/// factored.
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
