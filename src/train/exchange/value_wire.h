#pragma once
// How updated values reach all ranks from their owner under ZeRO-1: uncompressed, or, for matrices
// whose `parallel.value_codec` is not "fp32", as encoded changes.
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
#include "parallel/wire/wire.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// Whether this config encodes values between several ranks.
bool codes_values(const io::Config& config);

/// Empty: values of this parameter are sent uncompressed.
std::optional<kernels::WireFormat> value_format(const io::Config& config,
                                                const sparse::ParameterSpec& spec);

/// For the store's present masks. Valid until they change.
std::vector<parallel::WireSegment> value_segments(const io::Config& config,
                                                  const sparse::Store& store);

}  // namespace espalier::train
