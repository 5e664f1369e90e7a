#pragma once
// The codec of each parameter's gradient: that of `parallel.codec` for its name. Sent uncompressed
// unless a pattern names them: biases, norms, and parameters of fewer than `codec_min_size` kept
// elements. Always uncompressed: tied embeddings held by two stages, whose sums must be equal.
#include <optional>

#include "io/config/config.h"
#include "parallel/transport/communicator.h"
#include "parallel/wire/codec.h"
#include "parallel/wire/wire.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

parallel::CodecDefaults codec_defaults(const io::Config& config);

/// Empty: chosen by measurement (codec_choice.h).
std::optional<kernels::WireFormat> gradient_format(const io::Config& config, const Stage& stage,
                                                   const sparse::Parameter& parameter);
/// The same for a parameter of `kept` elements with gradients of type `dtype`.
std::optional<kernels::WireFormat> gradient_format(const io::Config& config,
                                                   const sparse::ParameterSpec& spec, int64_t kept,
                                                   DType dtype);

/// Whether the codec of any parameter is not "fp32".
bool loses(const io::Patterned& codec);
/// Whether gradients are compressed with loss.
inline bool loses(const io::Config& config) { return loses(config.parallel.codec); }

/// 0: derived from the gradient's size.
size_t bucket_bytes(const io::Config& config);

/// The reduction that `parallel.reduction` selects for these ranks.
std::string reduction_name(const io::Config& config, const parallel::Communicator& comm);

}  // namespace espalier::train
