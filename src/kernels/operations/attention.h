#pragma once
// Self-attention: causal, within a window, or of all tokens; heads may share keys and values.
#include "src/core/tensor.h"

namespace espalier::kernels {

/// softmax(scale q kᵀ) v by head, by tiles with a running (online) softmax: at most one tile of
/// scores exists. H = heads, K = kv_heads, D = columns of a head.
/// - qkv any [B, T, (H + 2 K) D]: q, k, v adjacent in a row, head h of each at its columns h D.
///   Query head h uses key head h / (H / K) (grouped-query attention: Ainslie et al., 2023).
/// - out [B, T, H D] of qkv's type; lse fp32 [B, H, T] = log of the sum of exponentials by row.
/// - causal: token t attends to tokens s with t - window < s <= t (without window: to 0..t);
///   otherwise to all.
struct AttentionArgs {
  Tensor qkv, out, lse;
  int heads = 1;
  int kv_heads = 0;  ///< divides heads; 0: as many as heads
  bool causal = true;
  int64_t window = 0;  ///< tokens that a token attends to; 0: no limit. Only if causal.
  float scale = 0;     ///< positive; 0: 1 / sqrt(D)
};

/// dqkv from dout; scores are recomputed by tile (FlashAttention-2, algorithm 2). The gradients of
/// k and v are sums over the query heads of a key head, in the order of these heads.
struct AttentionBackwardArgs {
  Tensor qkv, out, lse, dout, dqkv;
  int heads = 1;
  int kv_heads = 0;
  bool causal = true;
  int64_t window = 0;
  float scale = 0;
};

}  // namespace espalier::kernels
