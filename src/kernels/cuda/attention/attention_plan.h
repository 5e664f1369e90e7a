#pragma once
// Causal attention as graphs of cuDNN's operations, which it knows as flash attention: scores,
// softmax and their gradients are named one by one, and none is ever in memory but, backward, one:
//
//   forward    s = scale q kᵀ below the diagonal, -inf above; lse = log of the sum of exp(s) by
//              row; out = exp(s - lse) v
//   backward   p = exp(s - lse); dv = pᵀ dout; ds = scale p (dout vᵀ - delta); dk = dsᵀ q;
//              dq = ds k, delta = the sum of out dout by row
//
// Each key's gradients are summed by one block. Those of a query come from all keys' blocks: in a
// graph with an fp32 sum of dq (SDPA's of NVIDIA's frontend, github.com/NVIDIA/cudnn-frontend)
// atomics add them, in any order. Without one cuDNN keeps ds, bf16, in its workspace, and dq is a
// product of its own, with the same bits in each run.
#include <compare>
#include <memory>
#include <string>

#include "src/kernels/cuda/cudnn/graph.h"

namespace espalier::kernels::ESPALIER_GPU {

/// bf16, with rows as in AttentionArgs and AttentionBackwardArgs.
struct AttentionKey {
  bool backward = false;
  bool deterministic = true;  ///< else with a sum of dq; forward is always
  int64_t sequences = 0, tokens = 0, heads = 0, width = 0;
  auto operator<=>(const AttentionKey&) const = default;
};

/// Tensors of the graphs by number: in memory, and at last numbers.
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

struct AttentionPlan {
  std::shared_ptr<const CudnnPlan> plan;  ///< none: cuDNN does not take it
  std::string why_not;
};

/// Bytes of workspace that a plan may take, with room to spare: ds, or, on devices before 9.0, as
/// much as the sum of dq once more.
size_t attention_workspace(const AttentionKey& key);
/// Bytes of the sum of dq, where there is one. cuDNN zeroes it.
size_t attention_dq_sum(const AttentionKey& key);

/// Never throws Failure: a shape that cuDNN refuses has no plan, and a reason.
AttentionPlan plan_attention(const AttentionKey& key, const CudnnTarget& target);

}  // namespace espalier::kernels::ESPALIER_GPU
