#pragma once
// Softmax, cross-entropy and distillation of a row (CrossEntropyArgs, DistillationArgs). Math:
// exponential(x) = e^x for x <= 0, logarithm(x) = ln x.
#include "src/kernels/rules/shared.h"

namespace espalier::kernels::rules {

/// The softmax of a row is exp(x - top) / sum.
struct Normaliser {
  float top = -kLargest;  ///< finite, so that -inf logits give exp(-inf) = 0, not NaN
  float sum = 0;
};

/// The target's distribution is 1 - share at its class, and share / classes everywhere.
struct Smoothing {
  float share = 0;
  float classes = 1;
  float sum = 0;  ///< of the row's logits; not read if share is 0
};

struct RowLoss {
  float loss;
  float factor;     ///< the gradient of an element that is not the target is
  float even;       ///< factor exp(x - top) - even
  float at_target;  ///< the gradient of the target
};
/// `logit`: of the target; `scale`: of the gradient, which is NaN if the loss is not finite.
template <class Math>
ESPALIER_RULE RowLoss row_loss(const Normaliser& total, float logit, float scale,
                               const Smoothing& smoothing) {
  const float distance = total.top - logit;
  float loss = distance + Math::logarithm(total.sum);
  if (smoothing.share > 0.0F) {
    loss += smoothing.share * (logit - smoothing.sum / smoothing.classes);
  }
  const float applied = magnitude_of(loss) <= kLargest ? scale : not_a_number();
  const float even = smoothing.share / smoothing.classes;
  const float target = 1.0F - (smoothing.share - even);
  return {loss, applied / total.sum, applied * even,
          applied * (Math::exponential(-distance) / total.sum - target)};
}

/// The scalars of DistillationArgs.
struct Distilling {
  float weight, temperature, scale;
};

/// Sums over a row of logits x and of a teacher's logits y, with their maxima.
struct DistilledRow {
  float top = -kLargest;          ///< of x
  float teacher_top = -kLargest;  ///< of y
  float sum = 0;                  ///< of exp(x - top)
  float warm_sum = 0;             ///< of exp((x - top) / temperature)
  float teacher_sum = 0;          ///< of exp((y - teacher_top) / temperature)
  float divergence = 0;  ///< of exp((y - teacher_top) / temperature) times distance_between
};

/// ln q - ln p of an element, up to the logarithms of the sums.
ESPALIER_RULE float distance_between(const DistilledRow& row, float inverse, float x, float y) {
  return ((y - row.teacher_top) - (x - row.top)) * inverse;
}

struct DistilledLoss {
  float loss, teacher_loss;
  /// The gradient of an element that is not the target is own exp(x - top) + warm exp((x - top) /
  /// temperature) - teacher exp((y - teacher_top) / temperature).
  float own, warm, teacher;
  float target;  ///< that of the target is this less
};
/// `logit`: of the target.
template <class Math>
ESPALIER_RULE DistilledLoss distilled_loss(const DistilledRow& row, float logit,
                                           const Distilling& by) {
  const float loss = row.top - logit + Math::logarithm(row.sum);
  const float t = by.temperature;
  const float divergence = row.divergence / row.teacher_sum + Math::logarithm(row.warm_sum) -
                           Math::logarithm(row.teacher_sum);
  const float teacher_loss = t * t * divergence;
  const bool finite = magnitude_of(loss) <= kLargest && magnitude_of(teacher_loss) <= kLargest;
  const float applied = finite ? by.scale : not_a_number();
  const float own = (1.0F - by.weight) * applied;
  const float shared = by.weight * t * applied;
  return {loss, teacher_loss, own / row.sum, shared / row.warm_sum, shared / row.teacher_sum, own};
}

}  // namespace espalier::kernels::rules
