#pragma once
// Dropout whose draws depend on the seed, the step, the place in the network and the position in
// the global batch only: any number of ranks and micro-batches drops the same elements.
#include "src/model/layer.h"

namespace espalier::model {

/// y = dropout(x) at the place called `place`; y may be x. Forward and backward are the same call.
/// Does nothing when `drops` is false.
void apply_dropout(Pass& pass, std::string_view place, const Tensor& x, const Tensor& y);

inline bool drops(const Pass& pass) { return pass.dropout > 0; }

}  // namespace espalier::model
