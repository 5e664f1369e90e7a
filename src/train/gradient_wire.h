#pragma once
// How the gradient of a stage travels between its replicas: which codec each parameter gets, and the
// rank's error feedback.
//
// A parameter's codec is what `parallel.codec` says of its name. Where only the default speaks, biases,
// norms, and parameters of fewer than `codec_min_size` kept elements are sent as they are; so are tied
// embeddings that two stages hold, whose sums must be the same on both.
#include <vector>

#include "io/config.h"
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

}  // namespace espalier::train
