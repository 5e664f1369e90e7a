#pragma once
// Dropout. Draws depend only on the seed, the step, the place in the network and the position in
// the global batch, so any number of ranks and micro-batches drops the same elements.
#include "src/model/layer.h"

namespace espalier::model {

/// y = dropout(x) at `place`, a name; y may be x. Forward and backward are the same call. Does
/// nothing if `drops` is false.
void apply_dropout(Pass& pass, std::string_view place, const Tensor& x, const Tensor& y);

inline bool drops(const Pass& pass) { return pass.dropout.rate > 0; }

}  // namespace espalier::model
