#pragma once
// Attention as graphs of cuDNN operations that cuDNN recognises as flash attention. The
// graph names scores, softmax and their gradients one by one. None of them is stored in memory,
// except ds in deterministic backward.
//
//   forward    s = scale q kᵀ (causal: -inf above the diagonal); lse = log of the sum of exp(s) by
//              row; out = exp(s - lse) v
//   backward   p = exp(s - lse); dv = pᵀ dout; ds = scale p (dout vᵀ - delta); dk = dsᵀ q;
//              dq = ds k, delta = the sum of out dout by row
//
// One block sums the gradients of each key. The gradient of a query has contributions from the
// blocks of all keys:
// - In a graph with an fp32 sum of dq, atomics add them, in any order. (Source: SDPA of NVIDIA's
//   frontend, github.com/NVIDIA/cudnn-frontend.)
// - Without that sum, cuDNN keeps ds, bf16, in its workspace, and a separate product computes dq,
//   with the same bits in each run.
#include <compare>

#include "src/kernels/cuda/cudnn/graph.h"

namespace espalier::kernels::ESPALIER_GPU {

/// bf16, with rows as in AttentionArgs and AttentionBackwardArgs.
struct AttentionKey {
  bool backward = false;
  bool causal = true;
  bool deterministic = true;  ///< false: with an fp32 sum of dq; forward is always deterministic
  int64_t sequences = 0, tokens = 0, heads = 0, width = 0;
  auto operator<=>(const AttentionKey&) const = default;
};

/// Tensors of the graphs by number: first those in memory, then host numbers, then the sum of dq.
enum class AttentionTensor : int64_t {
  q = 1,
  k,
  v,
  out,
  lse,
  dout,
  delta,
  dq,
  dk,
  dv,
  scale,
  minus_infinity,
  one,
  dq_sum
};

/// Upper bound of the bytes of workspace of a plan: ds, or, on devices before 9.0, as much as the
/// sum of dq once more.
size_t attention_workspace(const AttentionKey& key);
/// Bytes of the sum of dq, 0 without one. cuDNN zeroes it.
size_t attention_dq_sum(const AttentionKey& key);

/// Never throws Failure: a shape that cuDNN refuses has no plan, and `why_not` gives the reason.
CudnnSupport plan_attention(const AttentionKey& key, const CudnnTarget& target);

}  // namespace espalier::kernels::ESPALIER_GPU
