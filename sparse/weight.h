#pragma once
// A weight as a layer sees it: three verbs, whatever the storage behind them. W is [N, K]; x, dx
// are [R, K]; y, dy are [R, N], in the compute type unless said otherwise.
//
//   apply                 y = x Wᵀ + b       y may be fp32 in any compute type; `accumulate` adds to y
//   apply_transposed      dx = dy W          likewise
//   accumulate_gradient   dW (+)= dyᵀ x      straight into the kept positions of the flat gradient
//
// Storages: `dense` (resident dense copy; SAMO's scheme). A dense gradient never exists for more
// than one parameter: a product into scratch, then one gather.
#include <memory>

#include "sparse/store.h"

namespace espalier::sparse {

class Weight {
 public:
  virtual ~Weight() = default;

  struct Apply {
    Tensor x, y;
    Tensor bias;  ///< fp32 [N] or empty
    bool accumulate = false;
  };
  virtual void apply(Stream& stream, const Apply& args) = 0;

  struct ApplyTransposed {
    Tensor dy, dx;
    bool accumulate = false;
  };
  virtual void apply_transposed(Stream& stream, const ApplyTransposed& args) = 0;

  struct AccumulateGradient {
    Tensor dy, x;
    bool accumulate = false;  ///< false: overwrites
  };
  virtual void accumulate_gradient(Stream& stream, const AccumulateGradient& args) = 0;
};

/// The weight behind a parameter of `store`, which must outlive it.
std::unique_ptr<Weight> make_weight(Store& store, const kernels::Kernels& kernels,
                                    Parameter& parameter);

}  // namespace espalier::sparse
