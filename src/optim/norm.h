#pragma once
// The norm of the gradient over all parameters. A block of kernels::kSumBlock kept elements, counted
// from its parameter's begin, is summed in double, and the blocks exactly: parts of the gradient may
// be summed by different ranks, in any order, and the norm has the bits of one that is summed whole.
#include "sparse/store.h"
#include "src/core/exact_sum.h"

namespace espalier::optim {

/// Squares of the gradients in `range` that this rank owns; of a store without sharding those are all
/// but the borrowed ones.
ExactSum owned_squares(Stream& stream, const kernels::Kernels& kernels, const sparse::Store& store,
                       const sparse::ParameterRange& range);

}  // namespace espalier::optim
