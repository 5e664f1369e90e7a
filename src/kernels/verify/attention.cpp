#include "src/kernels/operations/attention.h"

#include <algorithm>

#include "src/kernels/verify/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

template <class Args>
int kv_heads_of(const Args& args) {
  return args.kv_heads == 0 ? args.heads : args.kv_heads;
}

/// Scores over all heads and sequences that the mask keeps.
template <class Args>
double scores(const Args& args) {
  const auto tokens = static_cast<double>(args.qkv.shape[1]);
  double keys = args.causal ? (tokens + 1) / 2 : tokens;
  if (args.window > 0) {
    const double window = std::min(tokens, static_cast<double>(args.window));
    keys = window - window * (window - 1) / (2 * std::max(1.0, tokens));
  }
  return static_cast<double>(args.qkv.shape[0]) * args.heads * tokens * keys;
}

/// Flops of `products` products of each score with a row of D elements, and of the softmax.
template <class Args>
double attention_flops(const Args& args, int products) {
  const double width = static_cast<double>(args.qkv.cols()) / (args.heads + 2 * kv_heads_of(args));
  return scores(args) * (2 * products * width + kExp);
}

}  // namespace

void verify(const AttentionArgs& args) {
  const Shape& shape = args.qkv.shape;
  const int kv_heads = kv_heads_of(args);
  require(args.heads > 0 && kv_heads > 0 && args.heads % kv_heads == 0,
          "kv_heads must divide heads", args.heads, args.kv_heads);
  const int64_t parts = args.heads + 2 * int64_t{kv_heads};
  require(shape.rank() == 3 && shape[2] % parts == 0, "qkv must be [B, T, (heads + 2 kv_heads) D]",
          shape.text(), args.heads, kv_heads);
  require(args.window >= 0 && (args.causal || args.window == 0),
          "only causal attention has a window", args.window);
  require(args.scale >= 0, "the scale of scores must be positive, or 0 for 1 / sqrt(D)",
          args.scale);
  is_any("qkv", args.qkv);
  require(args.out.dtype == args.qkv.dtype, "out must have the type of qkv",
          name_of(args.out.dtype), name_of(args.qkv.dtype));
  is_flat("qkv", args.qkv, args.qkv.count());
  is_flat("out", args.out, args.qkv.count() / parts * args.heads);
  is_fp32_vector("lse", args.lse, shape[0] * args.heads * shape[1]);
}

DryCount cost(const AttentionArgs& args) {
  return {attention_flops(args, 2), traffic(args.qkv, args.out, args.lse)};
}

void verify(const AttentionBackwardArgs& args) {
  verify(AttentionArgs{.qkv = args.qkv,
                       .out = args.out,
                       .lse = args.lse,
                       .heads = args.heads,
                       .kv_heads = args.kv_heads,
                       .causal = args.causal,
                       .window = args.window,
                       .scale = args.scale});
  require(args.dout.dtype == args.qkv.dtype && args.dqkv.dtype == args.qkv.dtype,
          "gradients must have the type of qkv", name_of(args.dout.dtype),
          name_of(args.dqkv.dtype));
  is_flat("dout", args.dout, args.out.count());
  is_flat("dqkv", args.dqkv, args.qkv.count());
}

DryCount cost(const AttentionBackwardArgs& args) {
  return {attention_flops(args, 5), traffic(args.qkv, args.out, args.lse, args.dout, args.dqkv)};
}

}  // namespace espalier::kernels
