#pragma once
// Embedding of tokens, and cross-entropy losses.
#include "src/core/tensor.h"

namespace espalier::kernels {

/// fp32 x [B, T, C] = token[int32 tokens] + position[0..T). token, position: any [V, C], [>= T, C].
struct EmbeddingArgs {
  Tensor tokens, token, position, x;
};

/// dtoken[tokens] += dx, dposition[t] += sum over b of dx. dx fp32; dtoken, dposition any: the
/// contributions of one call to an element are first summed in fp32.
struct EmbeddingBackwardArgs {
  Tensor tokens, dx, dtoken, dposition;
};

/// By row: losses[r] = lse(logits[r]) - logits[r, target]; with `dlogits`, also dlogits = scale
/// (softmax(logits) - onehot). logits any [R, V]; dlogits any, may be logits; targets int32 [R];
/// losses fp32 [R]. If a row's loss is not finite, its dlogits are NaN.
struct CrossEntropyArgs {
  Tensor logits, targets, losses, dlogits;
  float scale = 1;
};

}  // namespace espalier::kernels
