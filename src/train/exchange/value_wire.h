#pragma once
// How the new values of ZeRO-1 travel from their owner to all ranks: as they are, or, of matrices
// whose `parallel.value_codec` is not "fp32", as changes in that codec.
//
//   m   master copy of an element, fp32, exact, with its owner alone (Store: `master`)
//   c   the common value, of the compute type, the same bits on all ranks: what is computed with
//   the owner sends code(m - c); all ranks, the owner too:  c = round(c + decode(code))
//
// Between devices kernels make the codes, and m is in the device's memory. Where values go through
// the host, it encodes: m is in pinned memory, where kernels write it (sparse/store/optimizer_arrays.h).
// An update that changed nothing, as its norm was not finite, has changes of zero, too (Wire).
//
// So what a code and the rounding lost, m - c, is in the next message: nothing is forgotten, and c
// follows m however coarse the code is. A parameter's codec does not change during a run: matrices
// of fewer than `codec_min_size` elements (kept or not, unless a pattern names them), biases,
// norms, and tied embeddings that two stages hold travel as they are.
#include <optional>
#include <vector>

#include "io/config/config.h"
#include "parallel/wire/wire.h"
#include "src/train/stage/stage.h"

namespace espalier::train {

/// Whether this config has values travel in codes where there are ranks to send them to.
bool codes_values(const io::Config& config);

/// Empty: values of this parameter travel as they are.
std::optional<kernels::WireFormat> value_format(const io::Config& config,
                                                const sparse::ParameterSpec& spec);

/// For the store's present masks. Valid until they change.
std::vector<parallel::WireSegment> value_segments(const io::Config& config,
                                                  const sparse::Store& store);

}  // namespace espalier::train
