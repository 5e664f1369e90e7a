#pragma once
// The codec that a config gives each parameter's gradient.
//
// It is what `parallel.codec` says of its name. Where only the default speaks, biases, norms, and
// parameters of fewer than `codec_min_size` kept elements are sent as they are; so are tied
// embeddings that two stages hold, whose sums must be the same on both.
#include <optional>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "parallel/wire/codec.h"
#include "parallel/wire/wire.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

parallel::CodecDefaults codec_defaults(const io::Config& config);

/// Empty: it is to be chosen by measurement (codec_choice.h).
std::optional<kernels::WireFormat> gradient_format(const io::Config& config, const Stage& stage,
                                                   const sparse::Parameter& parameter);
/// The same of a parameter of `kept` elements whose gradients have type `dtype`.
std::optional<kernels::WireFormat> gradient_format(const io::Config& config,
                                                   const sparse::ParameterSpec& spec, int64_t kept,
                                                   DType dtype);

/// Whether any parameter's codec is another than "fp32".
bool loses(const io::Patterned& codec);
/// Whether gradients lose anything on the way.
inline bool loses(const io::Config& config) { return loses(config.parallel.codec); }

/// Of a bucket; 0: by the gradient's size.
size_t bucket_bytes(const io::Config& config);

/// What `parallel.reduction` stands for among these ranks.
std::string reduction_name(const io::Config& config, const parallel::Communicator& comm);

}  // namespace espalier::train
