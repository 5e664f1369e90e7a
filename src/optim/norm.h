#pragma once
// The norm of the gradient over all parameters. A block of kernels::kSumBlock kept elements,
// counted from its parameter's begin, is summed in double, and the blocks exactly: parts of the
// gradient may be summed by different ranks, in any order, and the norm has the bits of one that is
// summed whole. Of a device the host waits for the digits of the sum alone (568 bytes).
#include "sparse/store.h"
#include "src/core/exact_sum.h"
#include "src/core/staging.h"

namespace espalier::optim {

class SquareSums {
 public:
  explicit SquareSums(Stream& stream);

  /// Squares of the gradients in `range` that this rank owns; of a store without sharding those are
  /// all but the borrowed ones.
  ExactSum owned(const kernels::Kernels& kernels, const sparse::Store& store,
                 const sparse::ParameterRange& range);

 private:
  Stream& stream_;
  Staging staging_;
  Buffer counts_;
};

}  // namespace espalier::optim
