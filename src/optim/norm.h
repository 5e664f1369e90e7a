#pragma once
// The norm of the gradient over all parameters. A block of kernels::kSumBlock kept elements, counted
// from its parameter's begin, is summed in double, and the blocks exactly: parts of the gradient may
// be summed by different ranks, in any order, and the norm has the bits of one that is summed whole.
// The host adds the blocks up: a few thousand at a time while a cache holds them, or on a device all at
// once, so that it waits once.
#include <vector>

#include "sparse/store.h"
#include "src/core/exact_sum.h"
#include "src/core/staging.h"

namespace espalier::optim {

class SquareSums {
 public:
  explicit SquareSums(Stream& stream) : stream_(stream), staging_(stream) {}

  /// Squares of the gradients in `range` that this rank owns; of a store without sharding those are
  /// all but the borrowed ones.
  ExactSum owned(const kernels::Kernels& kernels, const sparse::Store& store,
                 const sparse::ParameterRange& range);

 private:
  void make_room(int64_t blocks);
  void take(ExactSum& sum);

  Stream& stream_;
  Staging staging_;
  std::vector<double> host_;
  Buffer on_device_;
  Tensor sums_;  ///< one of the two, as bytes
  int64_t room_ = 0, used_ = 0;
};

}  // namespace espalier::optim
