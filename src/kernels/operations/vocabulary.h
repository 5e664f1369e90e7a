#pragma once
// Embedding of tokens, cross-entropy losses, distillation.
#include "src/core/tensor.h"

namespace espalier::kernels {

/// fp32 x [B, T, C] = scale token[int32 tokens] + position[0..T). token, position: any [V, C],
/// [>= T, C]. With `positions`, int32 [B T], row (b, t) adds position[positions[b T + t]] instead.
/// Without position, that term is missing.
struct EmbeddingArgs {
  Tensor tokens, token, position, x;
  float scale = 1;
  Tensor positions{};
};

/// dtoken[tokens] += scale dx, dposition[t] += sum over b of dx. dx fp32; the others any: the
/// contributions of one call to an element are first summed in fp32. dposition may be empty.
struct EmbeddingBackwardArgs {
  Tensor tokens, dx, dtoken, dposition;
  float scale = 1;
};

/// By row, with the distribution q = (1 - smoothing) onehot + smoothing / V of the target (label
/// smoothing: Szegedy et al. 2016; torch.nn.CrossEntropyLoss):
///   losses[r] = lse(logits[r]) - sum over c of q_c logits[r, c]; with `dlogits`, also
///   dlogits   = scale (softmax(logits) - q)
/// logits any [R, V]; dlogits any, may be logits; targets int32 [R]; losses fp32 [R]. If a row's
/// loss is not finite, its dlogits are NaN.
/// target_ranks, fp32 [R] or empty: the number of classes before the target in the order of
/// descending logits; of equal logits the lower class is first. A NaN is before every number; if
/// the target's logit is NaN, its rank is V. Exact, since V is at most 2^24.
struct CrossEntropyArgs {
  Tensor logits, targets, losses, dlogits;
  float scale = 1;
  float smoothing = 0;  ///< in [0, 1)
  Tensor target_ranks{};
};

/// Cross-entropy with the targets, and the divergence from a teacher's probabilities at temperature
/// t (Hinton et al. 2015), by row:
///   losses[r]  = lse(logits[r]) - logits[r, target]
///   teacher_losses[r] = t^2 sum over c of q ln(q / p), q = softmax(teacher / t),
///                                                      p = softmax(logits / t)
///   dlogits = scale ((1 - weight) (softmax(logits) - onehot) + weight t (p - q)), the gradient of
///             scale ((1 - weight) losses + weight teacher_losses)
/// logits, teacher fp32 [R, V], finite; dlogits any, may be logits; targets int32 [R]; losses,
/// teacher_losses fp32 [R]. If one of a row's losses is not finite, its dlogits are NaN.
struct DistillationArgs {
  Tensor logits, teacher, targets, losses, teacher_losses, dlogits;
  float weight = 0.5F;
  float temperature = 1;
  float scale = 1;
};

}  // namespace espalier::kernels
