#include "src/kernels/operations/attention.h"

#include "src/kernels/operations/cost.h"
#include "src/kernels/verify/rules.h"

namespace espalier::kernels {
namespace {

/// Scores over all heads and sequences; causal: those on and below the diagonal.
double scores(const Tensor& qkv, int heads, bool causal) {
  const auto tokens = static_cast<double>(qkv.shape[1]);
  const double keys = causal ? (tokens + 1) / 2 : tokens;
  return static_cast<double>(qkv.shape[0]) * heads * tokens * keys;
}

/// Flops of `products` products of each score with a row of D = C / H elements, and of the softmax.
double attention_flops(const Tensor& qkv, int heads, bool causal, int products) {
  const double width = static_cast<double>(qkv.cols()) / 3 / heads;
  return scores(qkv, heads, causal) * (2 * products * width + kExp);
}

}  // namespace

void verify(const AttentionArgs& args) {
  const Shape& shape = args.qkv.shape;
  require(shape.rank() == 3 && args.heads > 0 && shape[2] % (3 * args.heads) == 0,
          "qkv must be [B, T, 3 C] with heads dividing C", shape.text(), args.heads);
  is_any("qkv", args.qkv);
  require(args.out.dtype == args.qkv.dtype, "out must have the type of qkv",
          name_of(args.out.dtype), name_of(args.qkv.dtype));
  is_flat("qkv", args.qkv, args.qkv.count());
  is_flat("out", args.out, args.qkv.count() / 3);
  is_fp32_vector("lse", args.lse, shape[0] * args.heads * shape[1]);
}

DryCount cost(const AttentionArgs& args) {
  return {attention_flops(args.qkv, args.heads, args.causal, 2),
          traffic(args.qkv, args.out, args.lse)};
}

void verify(const AttentionBackwardArgs& args) {
  verify(AttentionArgs{.qkv = args.qkv, .out = args.out, .lse = args.lse, .heads = args.heads});
  require(args.dout.dtype == args.qkv.dtype && args.dqkv.dtype == args.qkv.dtype,
          "gradients must have the type of qkv", name_of(args.dout.dtype),
          name_of(args.dqkv.dtype));
  is_flat("dout", args.dout, args.out.count());
  is_flat("dqkv", args.dqkv, args.qkv.count());
}

DryCount cost(const AttentionBackwardArgs& args) {
  return {attention_flops(args.qkv, args.heads, args.causal, 5),
          traffic(args.qkv, args.out, args.lse, args.dout, args.dqkv)};
}

}  // namespace espalier::kernels
