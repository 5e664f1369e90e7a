#pragma once
// Tokens to vectors, and scores of tokens to losses.
#include "src/core/tensor.h"

namespace espalier::kernels {

/// x [B, T, C] (fp32) = token[tokens] + position[0..T). token, position: any [V, C], [>= T, C].
struct EmbeddingArgs {
  Tensor tokens, token, position, x;
};

/// dtoken[tokens] += dx, dposition[t] += sum over b of dx. dx fp32; dtoken, dposition any: what one
/// call adds to an element is summed in fp32 first.
struct EmbeddingBackwardArgs {
  Tensor tokens, dx, dtoken, dposition;
};

/// By row: losses[r] = lse(logits[r]) - logits[r, target]; with `dlogits`, also
/// dlogits = scale (softmax(logits) - onehot). logits any [R, V]; dlogits any, may be logits;
/// targets int32 [R]; losses fp32 [R]. A row of a loss that is not finite has NaN in dlogits.
struct CrossEntropyArgs {
  Tensor logits, targets, losses, dlogits;
  float scale = 1;
};

}  // namespace espalier::kernels
