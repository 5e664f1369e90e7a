#pragma once
// Wire formats of messages, as the config names them.
//
// Gradients: the codec of `parallel.codec` for the parameter's name. Sent uncompressed unless a
// pattern names them: biases, norms, and parameters of fewer than `codec_min_size` kept elements.
// Always uncompressed: tied embeddings held by two stages, whose sums must be equal.
//
// Updated values, from their owner to all ranks under ZeRO-1: uncompressed, or, for matrices whose
// `parallel.value_codec` is not "fp32", as encoded changes.
//
//   m   master copy of an element, fp32, exact, held by its owner only (Store: `master`)
//   c   the common value, of the compute type, the same bits on all ranks; kernels compute with it
//   the owner sends code(m - c); all ranks, the owner too:  c = round(c + decode(code))
//
// The error of code and rounding, m - c, is part of the next message, so c follows m however coarse
// the code is. Between devices, kernels encode, and m is in device memory. Through the host, the
// host encodes, and m is in pinned memory, where kernels write it. An update with a non-finite norm
// sends changes of zero (Wire).
//
// A parameter's codec does not change during a run. Sent uncompressed: biases, norms, matrices of
// fewer than `codec_min_size` elements (pruned ones included, unless a pattern names them), and
// tied embeddings held by two stages.
#include <optional>
#include <vector>

#include "io/config/config.h"
#include "parallel/wire/codec.h"
#include "parallel/wire/wire.h"
#include "sparse/store/store.h"

namespace espalier::train {

using parallel::CodecChooser;
CodecChooser codec_chooser(const io::Config& config);

/// Format of the gradient of a parameter of `kept` elements, of type `dtype`, that is not tied;
/// empty: chosen by measurement.
std::optional<kernels::WireFormat> gradient_format(const io::Config& config,
                                                   const sparse::ParameterSpec& spec, int64_t kept,
                                                   DType dtype);
/// Whether the gradient of any parameter is compressed with loss.
bool has_lossy_gradient_codec(const io::Config& config);

/// Whether updated values are encoded.
bool encodes_values(const io::Config& config);
/// Empty: values of this parameter are sent uncompressed.
std::optional<kernels::WireFormat> value_format(const io::Config& config,
                                                const sparse::ParameterSpec& spec);
/// Segments of the flat array of values, for the store's present masks. Valid until they change.
std::vector<parallel::WireSegment> value_segments(const io::Config& config,
                                                  const sparse::Store& store);

/// `parallel.bucket_mb` in bytes; 0: derived from the gradient's size.
size_t bucket_bytes(const io::Config& config);

/// Format of messages between stages.
kernels::WireFormat activation_format(const io::Config& config);

}  // namespace espalier::train
