#pragma once
// Self-attention, causal or of all tokens.
#include "src/core/tensor.h"

namespace espalier::kernels {

/// Self-attention, softmax(q kᵀ / sqrt(D)) v by head, by tiles with a running (online) softmax: at
/// most one tile of scores exists. qkv any [B, T, 3C] (q, k, v adjacent in a row, head h at columns
/// h D, D = C / heads); out [B, T, C] of qkv's type; lse fp32 [B, H, T] = log of the sum of
/// exponentials by row. causal: token t attends to tokens 0..t; otherwise to all.
struct AttentionArgs {
  Tensor qkv, out, lse;
  int heads = 1;
  bool causal = true;
};

/// dqkv from dout; scores are recomputed by tile (FlashAttention-2, algorithm 2).
struct AttentionBackwardArgs {
  Tensor qkv, out, lse, dout, dqkv;
  int heads = 1;
  bool causal = true;
};

}  // namespace espalier::kernels
