#pragma once
// Softmax and cross-entropy of a row (CrossEntropyArgs). Math: exponential(x) = e^x for x <= 0,
// logarithm(x) = ln x.
#include "src/kernels/rules/shared.h"

namespace espalier::kernels::rules {

/// The softmax of a row is exp(x - top) / sum.
struct Normaliser {
  float top = -kLargest;  ///< finite, so that -inf logits give exp(-inf) = 0, not NaN
  float sum = 0;
};

struct RowLoss {
  float loss;
  float factor;     ///< the gradient of an element is factor exp(x - top), if it is not the target
  float at_target;  ///< the gradient of the target
};
/// `logit`: of the target; `scale`: of the gradient, which is NaN if the loss is not finite.
template <class Math>
ESPALIER_RULE RowLoss row_loss(const Normaliser& total, float logit, float scale) {
  const float distance = total.top - logit;
  const float loss = distance + Math::logarithm(total.sum);
  const float applied = magnitude_of(loss) <= kLargest ? scale : not_a_number();
  return {loss, applied / total.sum, applied * (Math::exponential(-distance) / total.sum - 1.0F)};
}

}  // namespace espalier::kernels::rules
